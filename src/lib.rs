//! A checkpoint oracle: says what a language-model checkpoint computes, exactly, and whether another engine
//! computes the same.
//!
//! Data flows one way: [`cli`] -> [`checkpoint`] -> [`model`] (the plan) -> [`exec`] (layers, through [`ops`]) ->
//! [`oracle`] (the file and the comparison). Nothing below imports something above.

pub mod checkpoint;
pub mod cli;
pub mod digest;
pub mod engine;
pub mod exec;
pub mod model;
pub mod ops;
pub mod oracle;
pub mod problem;

pub use problem::Problem;
