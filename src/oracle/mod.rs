//! The `memra-checkpoint-oracle-v1` file, and what can be said about two of them.
