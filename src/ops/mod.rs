//! The arithmetic, each operation once, generic over the float type and sequential by definition.
//!
//! docs/numerics.md is the contract; the functions here are its text in code. Every sum runs over ascending index
//! with one accumulator that starts at zero: multiply, round, add, round.

pub mod activation;
pub mod attention;
pub mod conv;
pub mod delta;
pub mod float;
pub mod level;
pub mod mamba2;
pub mod matrix;
pub mod norm;
pub mod rope;
pub mod softmax;
pub mod softplus;
pub mod ternary;

pub use activation::Activation;
pub use float::Float;
pub use level::Level;
pub use matrix::Matrix;
