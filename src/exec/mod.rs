//! Running a plan: layers streamed one at a time through an executor.

pub mod accelerated;
pub mod driver;
pub mod kernels;
pub mod observer;
pub mod reference;
pub mod session;
pub mod weights;

pub use driver::{Executor, Input, Pass, Rows};
pub use kernels::Kernels;
pub use observer::{FirstNonFinite, Observer, Stage};
pub use session::Session;
