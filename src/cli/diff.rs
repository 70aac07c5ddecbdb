//! `oracle diff REF CAND` (also `compare`).
