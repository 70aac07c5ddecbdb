//! The closed books: pack, config and tensors become a plan, or a list of everything that is wrong.

use super::contract::{Contract, tensor_name};
use super::keys::{Keys, Reported, key_name, shown};
use super::pack::{Field, Inert, Pack};
use super::plan::{Attention, FeedForward, Head, Layer, Linear, Mixer, Mlp, Norm, NormKind, Plan, QkNorm};
use super::schema::{self, number};
use super::{rope, rules};
use crate::checkpoint::{Config, Source, TensorInfo, same::first_difference};
use crate::ops::Activation;
use crate::ops::attention::AttentionSpec;
use crate::ops::rope::Rope;
use crate::problem::{Problem, quote, quote_list};
use std::collections::BTreeSet;

/// No model has more; a config that says so is damaged.
const MAX_LAYERS: usize = 10_000;

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
    /// Tensors that the pack declares without effect on a text run.
    pub ignored: Vec<String>,
    /// Keys and tensors that stay unused because the user allowed it.
    pub allowed: Vec<String>,
}

/// Makes the plan and accounts for every key and tensor.
///
/// `unavailable` are tensors of broken files, `packs` the packs to choose from, `allow` the keys and tensors that may
/// stay unused. Reads no weight, except where a tied head is stored beside the embedding: then the two are compared.
pub fn close_books(
    config: &Config,
    source: &dyn Source,
    unavailable: &BTreeSet<String>,
    packs: &[Pack],
    allow: &[String],
) -> Books {
    let mut books = Books { pack: None, plan: None, problems: vec![], notes: vec![], ignored: vec![], allowed: vec![] };
    let file = config.path.display().to_string();
    let mut keys = Keys::new(&file, "", &config.root);
    let Ok((pack, why)) = choose(&mut keys, packs) else {
        // Without a family no other key or tensor can be judged.
        keys.read_all();
        books.problems = keys.close();
        return books;
    };
    declare_inert(&mut keys, pack);
    let folder = config.path.parent().unwrap_or(&config.path).display().to_string();
    let mut contract = Contract::new(&folder, &pack.tensors, source, unavailable);
    let head_name = contract.name(&pack.tensors.head);
    let hyper = Fields { pack, keys: &mut keys }.read();
    let built = hyper.is_ok();
    if let Ok(hyper) = hyper {
        books.plan = Some(hyper.plan(&mut contract, &pack.tensors));
    }
    books.problems = keys.close();
    if built {
        let (problems, ignored) = contract.close();
        books.problems.extend(problems);
        books.ignored = ignored;
    }
    books.pack = Some((pack.clone(), why));
    // Where a part could not be read, a name may be of something that is not known.
    let all_known = built && unavailable.is_empty();
    allow_unused(&mut books, allow, all_known);
    if let Some(plan) = &books.plan
        && plan.head.tied
        && let (Some(embed), Some(head)) = (source.tensors().get(&plan.embed.name), source.tensors().get(&head_name))
        && [embed, head].iter().all(|info| info.shape == plan.embed.shape && info.dtype.decoder().is_some())
    {
        match compare_tied(source, embed, head) {
            Ok(note) => books.notes.push(note),
            Err(problem) => books.problems.push(problem),
        }
    }
    books
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
    if let Some(other) = architectures.iter().find(|a| !pack.architectures.iter().any(|b| *a == b)) {
        let (other, known) = (quote(other), pack.architectures.join(", "));
        let message = format!("{other} is not a language model of this family; pack {} answers for {known}", pack.name);
        return Err(keys.report("architecture", "architectures", message));
    }
    Ok((pack, why))
}

fn unknown_family(found: &str, packs: &[Pack]) -> String {
    let mut known: Vec<&str> = packs.iter().flat_map(|p| &p.model_types).map(String::as_str).collect();
    known.sort_by(|a, b| strsim::jaro_winkler(found, b).total_cmp(&strsim::jaro_winkler(found, a)));
    known.truncate(3);
    format!("no pack answers for {}; the nearest are {} (oracle packs lists all)", quote(found), known.join(", "))
}

/// Marks the keys without numeric effect as read, where their value is one that has none.
fn declare_inert(keys: &mut Keys<'_>, pack: &Pack) {
    let inert = Inert::embedded();
    for key in inert.any.iter().chain(&pack.inert) {
        keys.raw(key);
    }
    for (key, values) in &inert.only {
        if let Some(value) = keys.raw(key)
            && !value.is_null()
            && !values.contains(value)
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
        let unused = |p: &Problem| matches!(p.code, "config-unknown-key" | "tensor-surplus");
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

/// A pack's fields, read from a config.
struct Fields<'p, 'k, 'c> {
    pack: &'p Pack,
    keys: &'k mut Keys<'c>,
}

/// Everything in a plan but the tensors.
struct Hyper {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
    max_position_embeddings: usize,
    norm_eps: f64,
    activation: Activation,
    qkv_bias: bool,
    o_bias: bool,
    mlp_bias: bool,
    qk_norm: bool,
    tied: bool,
    windows: Vec<Option<usize>>,
    rope: Rope,
}

impl Fields<'_, '_, '_> {
    /// Reads every field before it fails, so that all problems are found at once.
    fn read(&mut self) -> Result<Hyper, Reported> {
        let vocab_size = self.count("vocab_size");
        let hidden_size = self.count("hidden_size");
        let intermediate_size = self.count("intermediate_size");
        let num_hidden_layers =
            self.count("num_hidden_layers").and_then(|n| self.at_most("num_hidden_layers", n, MAX_LAYERS));
        let num_attention_heads = self.count("num_attention_heads");
        let num_key_value_heads = self.count("num_key_value_heads");
        let heads = self.group(num_attention_heads, num_key_value_heads);
        let head_dim = self.head_dim(hidden_size, num_attention_heads);
        let max_position_embeddings = self.count("max_position_embeddings");
        let norm_eps = self.eps();
        let activation = self.activation();
        let flags = ["qkv_bias", "o_bias", "mlp_bias", "qk_norm", "tie_word_embeddings"].map(|name| self.flag(name));
        let windows = match num_hidden_layers {
            Ok(layers) => self.windows(layers),
            Err(Reported) => self.skip(&rules::WINDOW_KEYS),
        };
        let rope = match (head_dim, max_position_embeddings) {
            (Ok(dim), Ok(max)) => self.rope(dim, max),
            _ => self.skip(&rope::KEYS),
        };
        let [qkv_bias, o_bias, mlp_bias, qk_norm, tied] = flags;
        let (num_attention_heads, num_key_value_heads) = heads?;
        Ok(Hyper {
            vocab_size: vocab_size?,
            hidden_size: hidden_size?,
            intermediate_size: intermediate_size?,
            num_hidden_layers: num_hidden_layers?,
            num_attention_heads,
            num_key_value_heads,
            head_dim: head_dim?,
            max_position_embeddings: max_position_embeddings?,
            norm_eps: norm_eps?,
            activation: activation?,
            qkv_bias: qkv_bias?,
            o_bias: o_bias?,
            mlp_bias: mlp_bias?,
            qk_norm: qk_norm?,
            tied: tied?,
            windows: windows?,
            rope: rope?,
        })
    }

    /// Leaves keys unjudged that can't be judged because of what is reported already.
    fn skip<T>(&mut self, keys: &[&str]) -> Result<T, Reported> {
        for key in keys {
            self.keys.raw(key);
        }
        Err(Reported)
    }

    fn field(&self, name: &str) -> Field {
        self.pack.fields.get(name).cloned().unwrap_or_default()
    }

    /// The key that a field is read from, for messages.
    fn key(&self, name: &str) -> String {
        self.field(name).key.unwrap_or_else(|| name.to_owned())
    }

    fn missing(&mut self, name: &str) -> Reported {
        let key = self.key(name);
        self.keys.report("config-key-missing", &key, format!("missing; it gives the plan's {name}"))
    }

    fn count(&mut self, name: &str) -> Result<usize, Reported> {
        let field = self.field(name);
        let constant = |v: &Option<toml::Value>| v.as_ref().and_then(toml::Value::as_integer).map(|n| n as usize);
        let Some(key) = &field.key else {
            return constant(&field.value).ok_or_else(|| self.missing(name));
        };
        let null = self.keys.is_null(key);
        if let Some(n) = self.keys.count(key)? {
            return Ok(n);
        }
        match (&field.null_from, constant(&field.default), &field.default_from) {
            (Some(other), ..) if null => self.count(&other.clone()),
            (_, Some(n), _) => Ok(n),
            (_, _, Some(other)) => self.count(&other.clone()),
            _ => Err(self.missing(name)),
        }
    }

    fn at_most(&mut self, name: &str, n: usize, most: usize) -> Result<usize, Reported> {
        if n <= most {
            return Ok(n);
        }
        let key = self.key(name);
        Err(self.keys.report("config-value", &key, format!("expected at most {most}, found {n}")))
    }

    fn flag(&mut self, name: &str) -> Result<bool, Reported> {
        let field = self.field(name);
        let given = match &field.key {
            Some(key) => self.keys.flag(key)?,
            None => field.value.as_ref().and_then(toml::Value::as_bool),
        };
        Ok(given.or(field.default.as_ref().and_then(toml::Value::as_bool)).unwrap_or(false))
    }

    fn group(
        &mut self,
        heads: Result<usize, Reported>,
        kv: Result<usize, Reported>,
    ) -> Result<(usize, usize), Reported> {
        let (heads, kv) = (heads?, kv?);
        if heads.is_multiple_of(kv) {
            return Ok((heads, kv));
        }
        let key = self.key("num_key_value_heads");
        Err(self.keys.report(
            "config-value",
            &key,
            format!("expected a divisor of num_attention_heads ({heads}), found {kv}"),
        ))
    }

    fn head_dim(&mut self, hidden: Result<usize, Reported>, heads: Result<usize, Reported>) -> Result<usize, Reported> {
        let field = self.field("head_dim");
        let key = self.key("head_dim");
        let given = match field.rule.as_deref() {
            Some(schema::HEAD_DIM) => self.keys.count(&key)?,
            _ => Some(self.count("head_dim")?),
        };
        let dim = match given {
            Some(dim) => dim,
            None => {
                let (hidden, heads) = (hidden?, heads?);
                if !hidden.is_multiple_of(heads) {
                    let message = format!(
                        "missing, and hidden_size ({hidden}) is not a multiple of num_attention_heads ({heads})"
                    );
                    return Err(self.keys.report("config-key-missing", &key, message));
                }
                hidden / heads
            }
        };
        if dim.is_multiple_of(2) {
            return Ok(dim);
        }
        Err(self.keys.report(
            "config-value",
            &key,
            format!("RoPE rotates pairs: expected an even head dimension, found {dim}"),
        ))
    }

    fn eps(&mut self) -> Result<f64, Reported> {
        let field = self.field("norm_eps");
        let given = match &field.key {
            Some(key) => {
                let expected = "a number from 0 to 1";
                self.keys.read(key, expected, |v| v.as_f64().filter(|n| (0.0..=1.0).contains(n)))?
            }
            None => field.value.as_ref().and_then(number),
        };
        given.or(field.default.as_ref().and_then(number)).ok_or_else(|| self.missing("norm_eps"))
    }

    fn activation(&mut self) -> Result<Activation, Reported> {
        let field = self.field("hidden_act");
        let key = self.key("hidden_act");
        let given = match &field.key {
            Some(key) => self.keys.text(key)?,
            None => field.value.as_ref().and_then(toml::Value::as_str),
        };
        let Some(name) = given.or(field.default.as_ref().and_then(toml::Value::as_str)) else {
            return Err(self.missing("hidden_act"));
        };
        match Activation::parse(name) {
            Some(activation) => Ok(activation),
            None => {
                let known = Activation::NAMES.map(|(n, _)| n).join(", ");
                Err(self.keys.report(
                    "activation",
                    &key,
                    format!("unsupported activation {}; supported are {known}", quote(name)),
                ))
            }
        }
    }

    fn windows(&mut self, layers: usize) -> Result<Vec<Option<usize>>, Reported> {
        let field = self.field("sliding_window");
        let default = field.default.as_ref().and_then(toml::Value::as_integer).map_or(0, |n| n as usize);
        match field.rule.as_deref() {
            Some(schema::WINDOW_EVERYWHERE) => rules::window_everywhere(self.keys, default, layers),
            Some(schema::WINDOW_BY_LAYER) => rules::window_by_layer(self.keys, default, layers),
            _ => Ok(vec![None; layers]),
        }
    }

    fn rope(&mut self, dim: usize, max_position_embeddings: usize) -> Result<Rope, Reported> {
        let default = self.field("rope").default.as_ref().and_then(number);
        rope::read(self.keys, default.unwrap_or(10_000.0), dim, max_position_embeddings)
    }
}

impl Hyper {
    /// Gives every part its tensors.
    fn plan(self, contract: &mut Contract<'_>, templates: &super::pack::Tensors) -> Plan {
        let embed_shape = [self.vocab_size, self.hidden_size];
        let embed = contract.take(contract.name(&templates.embed), &embed_shape);
        let layers = (0..self.num_hidden_layers).map(|i| self.layer(contract, i)).collect();
        let norm = contract.take(contract.name(&templates.norm), &[self.hidden_size]);
        let head_name = contract.name(&templates.head);
        // A tied checkpoint may store the head as well: it is then accounted for, and compared with the embedding.
        let head =
            if !self.tied || contract.has(&head_name) { Some(contract.take(head_name, &embed_shape)) } else { None };
        let weight = head.filter(|_| !self.tied).unwrap_or_else(|| embed.clone());
        Plan {
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            max_position_embeddings: self.max_position_embeddings,
            ropes: vec![self.rope],
            head: Head {
                linear: Linear { weight, bias: None },
                tied: self.tied,
                logit_scale: 1.0,
                logits_scaling: 1.0,
                final_logit_softcapping: None,
            },
            embed,
            embed_scale: 1.0,
            position_embed: None,
            per_layer_inputs: None,
            altup: None,
            layers,
            norm: Norm {
                weight: Some(norm),
                further: vec![],
                bias: None,
                eps: self.norm_eps,
                kind: NormKind::Rms,
                plus_one: false,
                size: self.hidden_size,
            },
        }
    }

    fn layer(&self, contract: &mut Contract<'_>, i: usize) -> Layer {
        let (hidden, inner, dim) = (self.hidden_size, self.intermediate_size, self.head_dim);
        let (q, kv) = (self.num_attention_heads * dim, self.num_key_value_heads * dim);
        let mut norm = |role: &str, size: usize| Norm {
            weight: Some(contract.layer(i, role, &[size])),
            further: vec![],
            bias: None,
            eps: self.norm_eps,
            kind: NormKind::Rms,
            plus_one: false,
            size,
        };
        let (mixer_norm, mlp_norm) = (norm("mixer_norm", hidden), norm("mlp_norm", hidden));
        let qk_norm =
            self.qk_norm.then(|| QkNorm { q: norm("q_norm", dim), k: Some(norm("k_norm", dim)), after_rope: false });
        let mut linear = |role: &str, shape: [usize; 2], bias: bool| Linear {
            weight: contract.layer(i, role, &shape),
            bias: bias.then(|| contract.layer(i, &format!("{role}_bias"), &shape[..1])),
        };
        let attention = Attention {
            spec: AttentionSpec {
                num_attention_heads: self.num_attention_heads,
                num_key_value_heads: self.num_key_value_heads,
                head_dim: dim,
                scale: 1.0 / (dim as f64).sqrt(),
                sliding_window: self.windows[i],
                ..AttentionSpec::new(1, 1, dim)
            },
            rope: Some(0),
            q: linear("q", [q, hidden], self.qkv_bias),
            k: Some(linear("k", [kv, hidden], self.qkv_bias)),
            v: Some(linear("v", [kv, hidden], self.qkv_bias)),
            o: linear("o", [hidden, q], self.o_bias),
            qk_norm,
            v_norm: None,
            kv_layer: None,
            gate: None,
            sinks: None,
            clip: None,
            temperature: None,
            sub_norm: None,
        };
        let mlp = Mlp {
            activation: self.activation,
            gate: Some(linear("gate", [inner, hidden], self.mlp_bias)),
            up: linear("up", [inner, hidden], self.mlp_bias),
            down: linear("down", [hidden, inner], self.mlp_bias),
            clamp: None,
            sparsity: None,
            sub_norm: None,
        };
        Layer {
            mixer_norm: Some(mixer_norm),
            mixer: Mixer::Attention(attention),
            mixer_post_norm: None,
            mlp_norm: Some(mlp_norm),
            mlp: Some(FeedForward::Dense(mlp)),
            mlp_post_norm: None,
            parallel: false,
            residual_multiplier: 1.0,
            altup: None,
            per_layer_input: None,
            scalar: None,
        }
    }
}
