//! `oracle packs`: the model families.

use super::Exit;
use crate::model::{Pack, rules};
use crate::oracle::output::to_standard_output;
use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::collections::BTreeSet;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oracle packs
  oracle packs --format json | jq '.[] | select(.model_types | index(\"qwen3_moe\"))'")]
pub struct PacksArgs {
    /// A line per family for people, or everything for machines
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// A family, as `--format json` prints it.
#[derive(Serialize)]
struct Family<'a> {
    name: &'a str,
    title: &'a str,
    model_types: &'a [String],
    architectures: &'a [String],
    /// The pack that this one is like.
    #[serde(skip_serializing_if = "Option::is_none")]
    like: Option<&'a str>,
    /// For a folder of several models: the key under which the language model's config stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    text_config: Option<&'a str>,
    /// Values of `general.architecture` in the GGUF files that the pack answers for.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    gguf_architectures: &'a [String],
    /// Config keys that change what is computed.
    options: BTreeSet<&'a str>,
    /// Where expected logits come from, and on which checkpoints they are compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<Verified<'a>>,
    /// Why such a checkpoint can't be run.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<&'a str>,
}

#[derive(Serialize)]
struct Verified<'a> {
    against: &'static str,
    fixtures: &'a [String],
}

/// What oracles/ was captured with.
const AGAINST: &str = "transformers 5.24, eager: float32 logits and a float64 truth at all positions";

/// Prints one line per family, or a list of objects.
///
/// # Errors
/// Standard output can't be written.
pub fn run(args: &PacksArgs) -> Result<Exit> {
    let packs = Pack::embedded();
    let text = match args.format {
        Format::Text => {
            let width = packs.iter().map(|p| p.name.len()).max().unwrap_or(0);
            let line = |pack: &Pack| {
                format!("{:width$}  model_type {}: {}\n", pack.name, pack.model_types.join(", "), pack.title)
            };
            packs.iter().map(line).collect()
        }
        Format::Json => serde_json::to_string_pretty(&packs.iter().map(family).collect::<Vec<_>>())? + "\n",
    };
    to_standard_output(|out| out.write_all(text.as_bytes()))?;
    Ok(Exit::Done)
}

fn family(pack: &Pack) -> Family<'_> {
    let keys = pack.fields.values().flat_map(|field| {
        let of_rule = rules::keys(field.rule.as_deref());
        field.keys.iter().map(String::as_str).chain(of_rule.iter().copied())
    });
    Family {
        name: &pack.name,
        title: &pack.title,
        model_types: &pack.model_types,
        architectures: &pack.architectures,
        like: pack.like.as_deref(),
        text_config: pack.text.as_ref().map(|text| text.config.as_str()),
        gguf_architectures: pack.gguf.as_ref().map_or(&[], |table| &table.architectures),
        options: keys.collect(),
        verified: (!pack.fixtures.is_empty()).then_some(Verified { against: AGAINST, fixtures: &pack.fixtures }),
        refused: pack.refuse.as_deref(),
    }
}
