//! Files to named, typed tensors. Nothing here knows what a model is.

pub mod config;
pub mod dtype;
pub mod safetensors;
pub mod source;

pub use config::Config;
pub use dtype::Dtype;
pub use source::{Source, SourceFile, TensorInfo};
