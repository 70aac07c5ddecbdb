//! From a config and a census of tensors to a plan: what to compute, with every key and every tensor accounted for.

mod assemble;
pub mod build;
pub mod contract;
pub mod fields;
pub mod gguf;
pub mod keys;
pub mod open;
pub mod pack;
mod parts;
pub mod plan;
pub mod quantization;
mod quantized;
pub mod rope;
pub mod rules;
pub mod schema;
pub mod synthetic;

pub use build::{Books, close_books};
pub use open::open;
pub use pack::Pack;
pub use plan::Plan;
