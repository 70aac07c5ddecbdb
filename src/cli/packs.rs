//! `oracle packs`: the model families.

use super::Exit;
use crate::model::Pack;
use crate::oracle::output::to_standard_output;
use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  oracle packs")]
pub struct PacksArgs {}

/// Prints one line per family.
pub fn run(_: &PacksArgs) -> anyhow::Result<Exit> {
    let packs = Pack::embedded();
    let width = packs.iter().map(|p| p.name.len()).max().unwrap_or(0);
    to_standard_output(|out| {
        for pack in packs {
            writeln!(out, "{:width$}  model_type {}: {}", pack.name, pack.model_types.join(", "), pack.title)?;
        }
        Ok(())
    })?;
    Ok(Exit::Done)
}
