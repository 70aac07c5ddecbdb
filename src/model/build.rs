//! The closed books: pack, config and tensors become a plan, or a list of everything that is wrong.

use super::assemble::Hyper;
use super::contract::{Contract, FOREIGN, tensor_name};
use super::fields::{Fields, OUTER, Stored};
use super::keys::{Keys, Reported, UNKNOWN_KEY, key_name, shown};
use super::pack::{Inert, Pack, Tensors, Text};
use super::plan::Plan;
use crate::checkpoint::{Config, Source, TensorInfo, same::first_difference};
use crate::problem::{Problem, nearest, quote, quote_list};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What the books say.
#[derive(Debug)]
pub struct Books {
    /// The pack and why it was chosen.
    pub pack: Option<(Pack, String)>,
    /// Present where it could be made; it is to be trusted only where there is no problem.
    pub plan: Option<Plan>,
    /// What forbids a run.
    pub problems: Vec<Problem>,
    /// What a reader should know and that forbids nothing.
    pub notes: Vec<Problem>,
    /// Tensors that the pack declares without effect on a text run, by what they are.
    pub ignored: BTreeMap<String, Vec<String>>,
    /// Keys and tensors that stay unused because the user allowed it.
    pub allowed: Vec<String>,
}

/// Makes the plan and accounts for every key and tensor.
///
/// `unavailable` are tensors of broken files, `packs` the packs to choose from, `allow` the keys and tensors that may
/// stay unused. Reads no weight, except scales of ternary ones, and where a tied head is stored beside the embedding: then
/// the two are compared.
pub fn close_books(
    config: &Config,
    source: &dyn Source,
    unavailable: &BTreeSet<String>,
    packs: &[Pack],
    allow: &[String],
) -> Books {
    let mut books =
        Books { pack: None, plan: None, problems: vec![], notes: vec![], ignored: BTreeMap::new(), allowed: vec![] };
    let file = config.path.display().to_string();
    let mut keys = Keys::new(&file, "", &config.root);
    let Ok((pack, why)) = choose(&mut keys, packs) else {
        // Without a family no other key or tensor can be judged.
        keys.read_all();
        books.problems = keys.close();
        return books;
    };
    if let Some(reason) = &pack.refuse {
        keys.report("model-type", "model_type", reason);
        keys.read_all();
        books.problems = keys.close();
        books.pack = Some((pack.clone(), why));
        return books;
    }
    declare_inert(&mut keys, pack);
    // A file that holds both is the place of its tensors; else the folder is.
    let whole = source.files().iter().any(|file| file.path == config.path);
    let folder = if whole { &config.path } else { config.path.parent().unwrap_or(&config.path) };
    let folder = folder.display().to_string();
    let stored = Stored::of(source, unavailable);
    let reading = match &pack.text {
        None => read(pack, &mut keys, None, stored).map(|hyper| (hyper, pack.tensors.clone(), why.clone())),
        Some(text) => read_text(pack, text, &mut keys, packs, &file, stored),
    };
    let placeholders = placeholders(pack, &mut keys);
    books.problems = keys.close();
    name_inert_of_base(&mut books.problems, pack);
    let mut head_name = None;
    let built = reading.is_ok();
    let mut because = why;
    if let Ok((hyper, tensors, why)) = reading {
        because = why;
        let mut contract = Contract::new(&folder, &tensors, source, unavailable);
        head_name = contract.model_name("head");
        let mut plan = hyper.plan(&mut contract);
        plan.placeholder_tokens = placeholders;
        books.plan = Some(plan);
        let (problems, ignored) = contract.close();
        books.problems.extend(problems);
        books.ignored = ignored;
    }
    books.pack = Some((pack.clone(), because));
    // Where a part could not be read, a name may be of something that is not known.
    let foreign = books.problems.iter().any(|problem| problem.code == FOREIGN);
    let all_known = built && unavailable.is_empty() && !foreign;
    allow_unused(&mut books, allow, all_known);
    name_origins(&mut books.problems, config);
    if let Some(plan) = &books.plan
        && plan.head.tied
        && let Some(head_name) = &head_name
        && let (Some(embed), Some(head)) = (source.tensors().get(&plan.embed.name), source.tensors().get(head_name))
        && [embed, head].iter().all(|info| info.shape == plan.embed.shape && info.dtype.decoder().is_some())
    {
        match compare_tied(source, embed, head) {
            Ok(note) => books.notes.push(note),
            Err(problem) => books.problems.push(problem),
        }
    }
    books
}

/// Says of an unknown key that the pack which this one is like lists it as inert: that is not handed down.
fn name_inert_of_base(problems: &mut [Problem], pack: &Pack) {
    let Some(base) = pack.like.as_ref().and_then(|like| Pack::named(like).ok()) else { return };
    for problem in problems.iter_mut().filter(|problem| problem.code == UNKNOWN_KEY) {
        if base.inert.iter().any(|key| problem.place.ends_with(&format!(", {}", key_name(key)))) {
            problem.message +=
                &format!(". Pack {} lists it as inert, which {} doesn't take over through like", base.name, pack.name);
        }
    }
}

/// Adds the file's own name to a config key that has one.
fn name_origins(problems: &mut [Problem], config: &Config) {
    for problem in problems {
        let origin = config.origins.iter().find(|(key, _)| problem.place.ends_with(&format!(", {}", key_name(key))));
        if let Some((_, origin)) = origin {
            problem.place += &format!(" ({} in the file)", quote(origin));
        }
    }
}

/// Reads a language model's config.
fn read<'c>(pack: &Pack, keys: &mut Keys<'c>, outer: Option<&mut Keys<'c>>, stored: Stored) -> Result<Hyper, Reported> {
    Hyper::read(&mut Fields { pack, keys, outer, stored })
}

/// Reads the config of the language model inside a folder of several: with the pack that answers for it, but for the
/// fields of which the folder's pack says something, and its tensors under the folder's names.
fn read_text<'c>(
    pack: &Pack,
    text: &Text,
    outer: &mut Keys<'c>,
    packs: &[Pack],
    file: &'c str,
    stored: Stored,
) -> Result<(Hyper, Tensors, String), Reported> {
    let Some(map) = outer.object(&text.config)? else {
        return Err(outer.report(
            "config-key-missing",
            &text.config,
            "missing; the language model's config stands there",
        ));
    };
    let mut keys = Keys::new(file, &format!("{}.", text.config), map);
    let found = keys.text("model_type").map(|found| found.unwrap_or(&text.model_type));
    let inner = found.and_then(|found| {
        let answers = |p: &&Pack| p.text.is_none() && p.model_types.iter().any(|m| m == found);
        match packs.iter().find(answers) {
            Some(inner) => Ok(inner),
            None => Err(keys.report("model-type", "model_type", unknown_family(found, packs))),
        }
    });
    let hyper = inner.and_then(|inner| {
        let mut inner = inner.clone();
        inner.fields.extend(pack.fields.clone());
        let inner = &inner;
        declare_inert(&mut keys, inner);
        let tensors = inner.tensors.under(&pack.tensors);
        let why = format!("its {}: pack {}", text.config, inner.name);
        Ok((read(inner, &mut keys, Some(outer), stored)?, tensors, why))
    });
    if inner.is_err() {
        // What its keys mean, and those that the folder has beside them, can't be known.
        keys.read_all();
        for key in OUTER {
            outer.raw(key);
        }
    }
    outer.add_problems(keys.close());
    hyper
}

/// The ids that stand for something else than text.
fn placeholders(pack: &Pack, keys: &mut Keys<'_>) -> BTreeMap<u32, String> {
    let mut placeholders = BTreeMap::new();
    for key in &pack.placeholder_tokens {
        let id = keys.read(key, "a token's id", |value| value.as_u64().and_then(|id| u32::try_from(id).ok()));
        if let Ok(Some(id)) = id {
            placeholders.insert(id, key.clone());
        }
    }
    placeholders
}

/// A head that is stored although it is tied: harmless where it equals the embedding, refused where it doesn't, since
/// then the config and the tensors say different things.
fn compare_tied(source: &dyn Source, embed: &TensorInfo, head: &TensorInfo) -> Result<Problem, Problem> {
    let place = format!("{}, {}", source.files()[head.file].path.display(), tensor_name(&head.name));
    match first_difference(source, embed, head) {
        Ok(None) => {
            let message =
                format!("stored although tie_word_embeddings is true; it equals {}, which is used", quote(&embed.name));
            Ok(Problem::new("head-tied", place, message))
        }
        Ok(Some(at)) => {
            let message = format!(
                "tie_word_embeddings is true, but the stored head differs from {} (first at element {at}): which one is meant can't be known",
                quote(&embed.name)
            );
            Err(Problem::new("head-tied", place, message))
        }
        Err(error) => Err(Problem::new("unreadable", place, format!("{error:#}"))),
    }
}

/// Which pack answers for this config, and why.
fn choose<'p>(keys: &mut Keys<'_>, packs: &'p [Pack]) -> Result<(&'p Pack, String), Reported> {
    let model_type = keys.text("model_type");
    let architectures = keys.read("architectures", "a list of texts", |v| {
        v.as_array()?.iter().map(|a| a.as_str()).collect::<Option<Vec<&str>>>()
    });
    let (model_type, architectures) = match (model_type?, architectures) {
        // The family is known all the same.
        (Some(model_type), Err(Reported)) => (Some(model_type), vec![]),
        (model_type, architectures) => (model_type, architectures?.unwrap_or_default()),
    };
    let (pack, why) = match model_type {
        Some(t) => match packs.iter().find(|p| p.model_types.iter().any(|m| m == t)) {
            Some(pack) => (pack, format!("model_type {}", quote(t))),
            None => return Err(keys.report("model-type", "model_type", unknown_family(t, packs))),
        },
        None => {
            let answers = |p: &&Pack| architectures.iter().any(|a| p.architectures.iter().any(|b| a == b));
            match packs.iter().find(answers) {
                Some(pack) => (
                    pack,
                    format!("architectures {}, as there is no model_type", quote_list(architectures.iter().copied())),
                ),
                None => {
                    return Err(keys.report(
                        "model-type",
                        "model_type",
                        "missing, and architectures names no known family",
                    ));
                }
            }
        }
    };
    let foreign = |a: &&&str| pack.refuse.is_none() && !pack.architectures.iter().any(|b| **a == b);
    if let Some(other) = architectures.iter().find(foreign) {
        let (other, known) = (quote(other), pack.architectures.join(", "));
        let message = format!("{other} is not a language model of this family; pack {} answers for {known}", pack.name);
        return Err(keys.report("architecture", "architectures", message));
    }
    Ok((pack, why))
}

fn unknown_family(found: &str, packs: &[Pack]) -> String {
    let known = packs.iter().flat_map(|p| &p.model_types).map(String::as_str);
    format!("no pack answers for {}{} (oracle packs lists all)", quote(found), nearest(found, known))
}

/// Marks the keys without numeric effect as read, where their value is one that has none.
fn declare_inert(keys: &mut Keys<'_>, pack: &Pack) {
    let inert = Inert::embedded();
    for key in inert.any.iter().chain(&pack.inert) {
        keys.raw(key);
    }
    for (key, values) in inert.only.iter().chain(&pack.only) {
        if pack.fields.values().any(|field| field.keys.contains(key)) && !pack.only.contains_key(key) {
            continue;
        }
        let harmless = |value: &Value| {
            // One for each layer is as harmless as one for all.
            let each = value.as_array().filter(|list| !list.is_empty());
            values.contains(value) || each.is_some_and(|list| list.iter().all(|value| values.contains(value)))
        };
        if let Some(value) = keys.raw(key)
            && !value.is_null()
            && !harmless(value)
        {
            keys.report(
                "config-value",
                key,
                format!("{} would change the numbers, and is not supported", shown(value)),
            );
        }
    }
}

/// Takes out what the user allowed. A name that stands for nothing is a slip that must not go unnoticed: a problem,
/// where all keys and tensors are known.
fn allow_unused(books: &mut Books, allow: &[String], all_known: bool) {
    for (i, name) in allow.iter().enumerate() {
        if allow[..i].contains(name) {
            continue;
        }
        let places = [tensor_name(name), key_name(name)].map(|place| format!(", {place}"));
        let unused = |p: &Problem| matches!(p.code, UNKNOWN_KEY | "tensor-surplus");
        let before = books.problems.len();
        books.problems.retain(|p| !(unused(p) && places.iter().any(|place| p.place.ends_with(place.as_str()))));
        if books.problems.len() < before {
            books.allowed.push(name.clone());
        } else if all_known {
            let message = "names neither an unknown key nor a surplus tensor of this checkpoint";
            books.problems.push(Problem::new("allow-unused", format!("--allow-unused {}", quote(name)), message));
        }
    }
}
