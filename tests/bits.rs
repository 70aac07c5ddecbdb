//! What no bit depends on: tiles, streaming, threads, chunks, and what else is in the pass.

mod common;

use checkpoint_oracle::checkpoint::{self, Source, load_resident};
use checkpoint_oracle::exec::{
    Executor, Input, Rows, Session,
    reference::{Reference, Vectors},
};
use checkpoint_oracle::model::{Pack, Plan, close_books};
use checkpoint_oracle::ops::{Float, Matrix};
use std::sync::Arc;

/// Between them: windows shorter than the prompt, dynamic and longrope tables that change within it, shards, mixed
/// dtypes, odd sizes, biases, QK-norm, tied heads.
const FIXTURES: [&str; 8] = [
    "llama-bias-llama3",
    "llama-dynamic",
    "llama-longrope",
    "mistral-window",
    "mistral-defaults-yarn",
    "mistral-longrope",
    "qwen2-layer-types-dynamic",
    "qwen3-window-llama3",
];

struct Loaded {
    plan: Plan,
    source: Arc<dyn Source>,
    tokens: Vec<u32>,
}

fn load(fixture: &str) -> Loaded {
    let opened = checkpoint::open(&common::fixture(fixture));
    let (config, source) = (opened.config.unwrap(), opened.source.unwrap());
    let books = close_books(&config, source.as_ref(), &opened.unavailable, Pack::embedded(), &[]);
    assert!(books.problems.is_empty(), "{fixture}: {:?}", books.problems);
    let plan = books.plan.unwrap();
    // 19 tokens: longer than every window and trained length here, and no multiple of anything.
    let tokens = (0..19).map(|i| (i * 37 + 11) % plan.vocab_size as u32).collect();
    Loaded { plan, source, tokens }
}

/// Logits of all positions as bits.
fn bits<F: Float>(logits: &Matrix<F>) -> Vec<u64> {
    logits.data().iter().map(|v| v.to_f64().to_bits()).collect()
}

fn in_chunks<F: Vectors>(loaded: &Loaded, source: &Arc<dyn Source>, tile: usize, chunks: &[usize]) -> Vec<u64> {
    let Loaded { plan, tokens, .. } = loaded;
    assert_eq!(chunks.iter().sum::<usize>(), tokens.len());
    let mut session = Session::<F>::new(plan, tokens.len());
    let mut all = Vec::new();
    for &n in chunks {
        let first = session.len();
        let input = Input {
            tokens: tokens[first..first + n].to_vec(),
            positions: (first as u32..(first + n) as u32).collect(),
            session: &mut session,
        };
        let kernels = Reference::default();
        let executor = Executor::new(plan, source, &kernels).with_piece_bytes(tile);
        all.extend(bits(&executor.run(vec![input], Rows::All, &mut ()).unwrap()[0]));
    }
    all
}

fn whole<F: Vectors>(loaded: &Loaded) -> Vec<u64> {
    in_chunks::<F>(loaded, &loaded.source, usize::MAX, &[loaded.tokens.len()])
}

#[test]
fn bits_do_not_depend_on_the_tile_size() {
    for fixture in FIXTURES {
        let loaded = load(fixture);
        let expected = whole::<f32>(&loaded);
        for tile in [0, 1, 100, 1000, 8 << 20] {
            let tiled = in_chunks::<f32>(&loaded, &loaded.source, tile, &[19]);
            assert_eq!(tiled, expected, "{fixture} in tiles of {tile} bytes");
        }
        let wide = in_chunks::<f64>(&loaded, &loaded.source, 100, &[19]);
        assert_eq!(wide, whole::<f64>(&loaded), "{fixture} in float64");
        assert_ne!(wide, expected, "the classes differ");
    }
}

#[test]
fn bits_do_not_depend_on_streaming() {
    for fixture in FIXTURES {
        let loaded = load(fixture);
        let resident: Arc<dyn Source> = Arc::new(load_resident(loaded.source.as_ref()).unwrap());
        for tile in [1, usize::MAX] {
            assert_eq!(in_chunks::<f32>(&loaded, &resident, tile, &[19]), whole::<f32>(&loaded), "{fixture}");
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    for fixture in FIXTURES {
        let loaded = load(fixture);
        let expected = whole::<f32>(&loaded);
        for threads in [1, 2, 3, 7, 16] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            assert_eq!(pool.install(|| whole::<f32>(&loaded)), expected, "{fixture} on {threads} threads");
        }
    }
}

#[test]
fn bits_do_not_depend_on_how_a_prompt_is_cut_into_chunks() {
    for fixture in FIXTURES {
        let loaded = load(fixture);
        let (narrow, wide) = (whole::<f32>(&loaded), whole::<f64>(&loaded));
        for chunks in [&[18, 1][..], &[1, 18], &[7, 5, 7], &[8, 8, 3], &[1; 19]] {
            let source = &loaded.source;
            assert_eq!(in_chunks::<f32>(&loaded, source, usize::MAX, chunks), narrow, "{fixture} as {chunks:?}");
            assert_eq!(in_chunks::<f64>(&loaded, source, usize::MAX, chunks), wide, "{fixture} as {chunks:?}");
        }
    }
}

#[test]
fn a_sessions_length_decides_where_the_rope_depends_on_it() {
    // What chunking may not depend on is fixed by the session; that it has an effect at all shows that the test can fail.
    for fixture in ["llama-dynamic", "llama-longrope", "mistral-longrope"] {
        let loaded = load(fixture);
        let with_length = |length: usize| {
            let mut session = Session::<f32>::new(&loaded.plan, length);
            let tokens = loaded.tokens[..3].to_vec();
            let input = Input { session: &mut session, tokens, positions: vec![0, 1, 2] };
            let kernels = Reference::default();
            let executor = Executor::new(&loaded.plan, &loaded.source, &kernels);
            bits(&executor.run(vec![input], Rows::All, &mut ()).unwrap()[0])
        };
        assert_eq!(with_length(3), with_length(4), "{fixture}: both are short");
        assert_ne!(with_length(3), with_length(40), "{fixture}: one is short, one long");
    }
}

#[test]
fn bits_do_not_depend_on_other_prompts_in_the_pass() {
    for fixture in FIXTURES {
        let loaded = load(fixture);
        let prompts = [loaded.tokens.clone(), vec![3], loaded.tokens[4..15].to_vec(), vec![9, 9]];
        let run = |prompts: &[Vec<u32>]| -> Vec<Vec<u64>> {
            let mut sessions: Vec<Session<f32>> =
                prompts.iter().map(|tokens| Session::new(&loaded.plan, tokens.len())).collect();
            let inputs = sessions.iter_mut().zip(prompts).map(|(session, tokens)| Input {
                session,
                tokens: tokens.clone(),
                positions: (0..tokens.len() as u32).collect(),
            });
            let kernels = Reference::default();
            let executor = Executor::new(&loaded.plan, &loaded.source, &kernels);
            executor.run(inputs.collect(), Rows::All, &mut ()).unwrap().iter().map(bits).collect()
        };
        let alone: Vec<_> = prompts.iter().map(|prompt| run(std::slice::from_ref(prompt)).remove(0)).collect();
        assert_eq!(run(&prompts), alone, "{fixture}");
        let mut reversed = run(&prompts.iter().rev().cloned().collect::<Vec<_>>());
        reversed.reverse();
        assert_eq!(reversed, alone, "{fixture} in another order");
        assert_eq!(alone[0], whole::<f32>(&loaded));
    }
}

#[test]
fn the_last_row_is_that_of_all_rows() {
    for fixture in FIXTURES {
        let loaded = load(fixture);
        let mut session = Session::<f32>::new(&loaded.plan, 19);
        let input = Input { session: &mut session, tokens: loaded.tokens.clone(), positions: (0..19).collect() };
        let kernels = Reference::default();
        let executor = Executor::new(&loaded.plan, &loaded.source, &kernels);
        let last = bits(&executor.run(vec![input], Rows::Last, &mut ()).unwrap()[0]);
        let all = whole::<f32>(&loaded);
        assert_eq!(last, all[all.len() - last.len()..], "{fixture}");
        assert_eq!(last.len(), loaded.plan.vocab_size);
    }
}
