//! Wrong input for the checkpoint reader, one test for each attack: what is refused, with which words, and the
//! neighbouring input that is accepted.

mod config;
mod containers;
mod fuzz;
mod gguf;
mod header;
mod index;
mod made;
mod reading;
