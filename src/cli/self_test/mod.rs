//! `oracle self-test`: proof that this machine gives the bits that were promised.

mod mutants;

use super::Exit;
use crate::checkpoint::{Config, Source, load_resident};
use crate::exec::accelerated::{self, Accelerated};
use crate::exec::driver::PIECE_BYTES;
use crate::exec::{Executor, Input, Kernels, Rows, Session, reference::Reference};
use crate::model::pack::SelfTest;
use crate::model::{Pack, Plan, close_books, synthetic};
use crate::ops::{Float, Matrix};
use crate::oracle::output::to_standard_output;
use crate::oracle::power::HONEST_MULTIPLE;
use crate::problem::sentences;
use anyhow::{Context, Result, ensure};
use clap::Args;
use mutants::Rates;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Thread counts that must agree.
const THREADS: [usize; 4] = [1, 2, 3, 7];

#[derive(Debug, Default, Args)]
#[command(after_help = "\
Examples:
  oracle self-test
  oracle self-test --pack qwen3
  oracle self-test --mutants")]
pub struct SelfTestArgs {
    /// Only this family
    #[arg(long, value_name = "P")]
    pack: Option<String>,

    /// Prove as well that the checks notice every fault that an engine can be given, and reject no engine that is right
    #[arg(long)]
    mutants: bool,
}

/// Tests every pack, or one.
///
/// # Errors
/// No such pack, or a fixture can't be made.
pub fn run(args: &SelfTestArgs) -> Result<Exit> {
    let packs: Vec<&Pack> = match &args.pack {
        Some(name) => vec![Pack::named(name).map_err(anyhow::Error::msg)?],
        None => Pack::embedded().iter().filter(|pack| pack.refuse.is_none()).collect(),
    };
    let mut lines = Vec::new();
    let mut failed = 0;
    let mut rates = Rates::default();
    for pack in &packs {
        let outcome = test(pack).with_context(|| format!("pack {}", pack.name))?;
        let mut failures = outcome.failures;
        if args.mutants {
            let found = mutants::test(pack).with_context(|| format!("pack {}", pack.name))?;
            failures.extend(found.failures());
            rates.add(found);
        }
        let verdict = if failures.is_empty() { "ok" } else { "FAILED" };
        lines.push(format!("{:12} {verdict:6} {}", pack.name, outcome.hash));
        lines.extend(failures.iter().map(|f| format!("{:12} {f}", "")));
        failed += usize::from(!failures.is_empty());
    }
    let threads = THREADS.map(|n| n.to_string()).join(", ");
    lines.push(format!("checked for each: streamed = resident = in one piece, threads {threads} alike, prefill + decode = one pass, bits as promised, accelerated ({}) within {HONEST_MULTIPLE} times the reference's distance from the truth", accelerated::BACKENDS.join(", ")));
    if args.mutants {
        lines.push(rates.summary());
    }
    let machine = format!("{} {}", std::env::consts::ARCH, std::env::consts::OS);
    lines.push(match (failed, packs.len()) {
        (0, 1) => format!("1 pack passed on {machine}"),
        (0, all) => format!("{all} packs passed on {machine}"),
        (some, all) => format!("{some} of {all} packs FAILED on {machine}"),
    });
    to_standard_output(|out| lines.iter().try_for_each(|line| writeln!(out, "{line}")))?;
    Ok(if failed == 0 { Exit::Done } else { Exit::Different })
}

struct Outcome {
    /// SHA-256 of the logits' bits, little endian, of all positions.
    hash: String,
    failures: Vec<String>,
}

fn test(pack: &Pack) -> Result<Outcome> {
    let (config, tensors) = synthetic::checkpoint(pack)?;
    let (_folder, streamed) = on_disk(&tensors)?;
    let resident: Arc<dyn Source> = Arc::new(load_resident(streamed.as_ref())?);
    compare(pack, &config, &streamed, &resident)
}

/// Holds every way of computing the logits against one, and that against the promise.
fn compare(pack: &Pack, config: &Config, streamed: &Arc<dyn Source>, resident: &Arc<dyn Source>) -> Result<Outcome> {
    let books = close_books(config, resident.as_ref(), &BTreeSet::new(), &pack.and_embedded(), &[]);
    let plan = books.plan.filter(|_| books.problems.is_empty()).with_context(|| sentences(&books.problems))?;

    let SelfTest { tokens, logits_sha256, .. } = &pack.self_test;
    let logits = |source: &Arc<dyn Source>, chunks: &[usize], threads: usize, piece_bytes: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        pool.install(|| logits::<f32>(&plan, source, &Reference::default(), tokens, chunks, piece_bytes))
    };
    let whole = usize::MAX;
    let expected = logits(resident, &[tokens.len()], 1, whole)?;
    let hash = hash(&expected);
    let mut failures = Vec::new();
    if hash != *logits_sha256 {
        failures.push(format!("the logits' bits are not those that were promised: sha256 {logits_sha256}"));
    }
    let mut check = |what: &str, got: Matrix<f32>| {
        let differs = got.data().iter().zip(expected.data()).position(|(a, b)| a.to_bits() != b.to_bits());
        if got.rows() != expected.rows() || differs.is_some() {
            failures.push(format!("{what} changes the result, first at logit {}", differs.unwrap_or(0)));
        }
    };
    let n = tokens.len();
    check("streaming from a file row by row", logits(streamed, &[n], 1, 1)?);
    check("streaming from a file", logits(streamed, &[n], 2, 4096)?);
    for threads in THREADS {
        check(&format!("{threads} threads"), logits(resident, &[n], threads, whole)?);
    }
    check("prefill and one decode step", logits(resident, &[n - 1, 1], 2, whole)?);
    check("decoding token by token", logits(resident, &vec![1; n], 1, whole)?);
    for &name in accelerated::BACKENDS {
        let kernels = Accelerated::new(accelerated::by_name(name)?);
        failures.extend(far_from_truth(&plan, resident, tokens, &kernels.engine(), &kernels)?);
    }
    Ok(Outcome { hash, failures })
}

/// What is wrong where an engine that promises no bits is too far from the float64 truth, measured by the reference's own
/// distance, on a prompt that is long enough for a matrix product to be used.
fn far_from_truth(
    plan: &Plan,
    source: &Arc<dyn Source>,
    tokens: &[u32],
    engine: &str,
    kernels: &dyn Kernels<f32>,
) -> Result<Option<String>> {
    let tokens: Vec<u32> = tokens.iter().copied().cycle().take(50).collect();
    let chunks = [tokens.len()];
    let truth = logits::<f64>(plan, source, &Reference::default(), &tokens, &chunks, PIECE_BYTES)?;
    let distance = |kernels: &dyn Kernels<f32>| -> Result<f64> {
        let logits = logits(plan, source, kernels, &tokens, &chunks, PIECE_BYTES)?;
        let pairs = logits.data().iter().zip(truth.data());
        let off = pairs.map(|(&a, &b)| (f64::from(a) - b).abs());
        Ok(off.fold(0.0, |most, d| if d > most || d.is_nan() { d } else { most }))
    };
    let (own, theirs) = (distance(&Reference::default())?, distance(kernels)?);
    Ok((theirs.is_nan() || theirs > HONEST_MULTIPLE * own).then(|| {
        format!("{engine} is {theirs:.2e} from the truth, more than {HONEST_MULTIPLE} times the reference's {own:.2e}")
    }))
}

/// The checkpoint as a folder of safetensors, and the folder, which goes when it is dropped.
pub(super) fn on_disk(tensors: &synthetic::Tensors) -> Result<(tempfile::TempDir, Arc<dyn Source>)> {
    use safetensors::{Dtype as Stored, tensor::TensorView};
    let folder = tempfile::tempdir().context("a temporary folder can't be made")?;
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        let dtype = match dtype.name() {
            "F16" => Stored::F16,
            "BF16" => Stored::BF16,
            "U8" => Stored::U8,
            _ => Stored::F32,
        };
        Ok((name, TensorView::new(dtype, shape.clone(), bytes)?))
    });
    let views = views.collect::<Result<Vec<_>>>()?;
    safetensors::serialize_to_file(views, None, &folder.path().join("model.safetensors"))?;
    let opened = crate::checkpoint::SafetensorsFolder::open(folder.path());
    ensure!(opened.problems.is_empty(), sentences(&opened.problems));
    Ok((folder, Arc::new(opened.source.context("the folder has tensors")?)))
}

/// Logits of all positions, the tokens being passed in chunks of the given sizes.
fn logits<F: Float>(
    plan: &Plan,
    source: &Arc<dyn Source>,
    kernels: &dyn Kernels<F>,
    tokens: &[u32],
    chunks: &[usize],
    piece_bytes: usize,
) -> Result<Matrix<F>> {
    let mut session = Session::new(plan, tokens.len());
    let mut all = Matrix::filled(0, plan.vocab_size, F::ZERO);
    for &n in chunks {
        let first = session.len();
        let input = Input {
            tokens: tokens[first..first + n].to_vec(),
            positions: (first as u32..(first + n) as u32).collect(),
            session: &mut session,
        };
        let executor = Executor::new(plan, source, kernels).with_piece_bytes(piece_bytes);
        all.extend_rows(executor.run(vec![input], Rows::All, &mut ())?[0].data());
    }
    Ok(all)
}

fn hash(logits: &Matrix<f32>) -> String {
    let mut sha = Sha256::new();
    for value in logits.data() {
        sha.update(value.to_le_bytes());
    }
    crate::digest::to_hex(&sha.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::MemorySource;

    /// The first pack's checkpoint, with one bit of one weight altered.
    fn altered(pack: &Pack) -> (Config, Arc<dyn Source>, Arc<dyn Source>) {
        let (config, mut tensors) = synthetic::checkpoint(pack).unwrap();
        let sound = Arc::new(MemorySource::new(tensors.clone()).unwrap());
        let (_, _, bytes) = tensors.get_mut("model.layers.1.self_attn.v_proj.weight").unwrap();
        bytes[0] ^= 1;
        (config, sound, Arc::new(MemorySource::new(tensors).unwrap()))
    }

    #[test]
    fn one_bit_of_one_weight_breaks_the_promise() {
        let pack = Pack::named("llama").unwrap();
        let (config, sound, altered) = altered(pack);
        assert!(compare(pack, &config, &sound, &sound).unwrap().failures.is_empty());
        let outcome = compare(pack, &config, &altered, &altered).unwrap();
        assert_ne!(outcome.hash, pack.self_test.logits_sha256);
        let [only] = &outcome.failures[..] else { panic!("expected one failure, found {:?}", outcome.failures) };
        assert!(
            only.contains("not those that were promised") && only.contains(&pack.self_test.logits_sha256),
            "{only}"
        );
    }

    #[test]
    fn a_stream_that_gives_other_bits_is_noticed() {
        let pack = Pack::named("llama").unwrap();
        let (config, sound, altered) = altered(pack);
        let outcome = compare(pack, &config, &altered, &sound).unwrap();
        assert_eq!(outcome.failures.len(), 2, "{:?}", outcome.failures);
        assert!(outcome.failures.iter().all(|f| f.starts_with("streaming from a file")), "{:?}", outcome.failures);
    }

    #[test]
    fn an_engine_that_is_too_far_from_the_truth_is_noticed() {
        for pack in Pack::embedded().iter().filter(|pack| pack.refuse.is_none()) {
            let (config, tensors) = synthetic::checkpoint(pack).unwrap();
            let source: Arc<dyn Source> = Arc::new(MemorySource::new(tensors).unwrap());
            let books = close_books(&config, source.as_ref(), &BTreeSet::new(), &pack.and_embedded(), &[]);
            let plan = books.plan.unwrap();
            let reference = Reference::default();
            let coarse = crate::exec::faults::inject("bf16-activations", &plan).unwrap();
            let coarse = coarse.wrap::<f32>(&reference);
            let judge = |kernels: &dyn Kernels<f32>| {
                far_from_truth(&plan, &source, &pack.self_test.tokens, "engine", kernels).unwrap()
            };
            assert_eq!(judge(&reference), None);
            assert!(judge(coarse.as_ref()).is_some_and(|text| text.starts_with("engine is ")), "{}", pack.name);
        }
    }
}
