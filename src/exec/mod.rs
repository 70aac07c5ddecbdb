//! Running a plan: layers streamed one at a time through an executor.

pub mod accelerated;
pub mod driver;
pub mod faults;
pub mod kernels;
pub mod memory;
pub mod observer;
pub mod reference;
pub mod state;
pub mod weights;

pub use driver::{Executor, Input, Pass, Rows};
pub use kernels::Kernels;
pub use observer::{FirstNonFinite, Observer, Stage};
pub use state::{Session, SessionOptions};
