//! What a session promises: going on, trimming, forking, snapshots, resets, room, and formats of the cache.

mod common;

use checkpoint_oracle::checkpoint::Source;
use checkpoint_oracle::exec::reference::{Reference, Vectors};
use checkpoint_oracle::exec::state::{CacheFormat, PartShape, SnapshotError, StateError};
use checkpoint_oracle::exec::{Executor, Input, Rows, Session, SessionOptions};
use checkpoint_oracle::model::Plan;
use common::load;
use serde_json::{Value, json};
use std::sync::Arc;

/// Window 7 on all layers.
const WINDOW: &str = "mistral-window";
const ROLLING: SessionOptions = SessionOptions { capacity: None, rolling: true, cache: CacheFormat::Computed };

struct Model {
    plan: Plan,
    source: Arc<dyn Source>,
}

impl Model {
    fn of(fixture: &str) -> Self {
        let (plan, source) = load(fixture);
        Self { plan, source }
    }

    fn session<F: Vectors>(&self, options: SessionOptions) -> Session<F> {
        Session::with_options(&self.plan, 40, options)
    }

    /// The next `n` tokens of one fixed sequence, or those of another; logits of all as numbers.
    fn feed_from<F: Vectors>(&self, session: &mut Session<F>, n: usize, shift: usize) -> Vec<f64> {
        if n == 0 {
            return Vec::new();
        }
        let first = session.len();
        let tokens = (first..first + n).map(|i| ((i * 37 + 11 + shift) % self.plan.vocab_size) as u32).collect();
        self.try_feed(session, tokens, (first as u32..(first + n) as u32).collect()).unwrap()
    }

    fn feed<F: Vectors>(&self, session: &mut Session<F>, n: usize) -> Vec<f64> {
        self.feed_from(session, n, 0)
    }

    fn try_feed<F: Vectors>(
        &self,
        session: &mut Session<F>,
        tokens: Vec<u32>,
        positions: Vec<u32>,
    ) -> anyhow::Result<Vec<f64>> {
        let kernels = Reference::default();
        let input = Input { session, tokens, positions };
        let out = Executor::new(&self.plan, &self.source, &kernels).run(vec![input], Rows::All, &mut ())?;
        Ok(out[0].data().iter().map(|v| v.to_f64()).collect())
    }

    /// Logits of `n` tokens in one pass; the last `rows` of them.
    fn whole<F: Vectors>(&self, n: usize, rows: usize) -> Vec<f64> {
        let all = self.feed::<F>(&mut self.session(SessionOptions::default()), n);
        all[(n - rows) * self.plan.vocab_size..].to_vec()
    }

    fn snapshot<F: Vectors>(&self, session: &Session<F>) -> Vec<u8> {
        let mut bytes = Vec::new();
        session.snapshot(&self.plan, &mut bytes).unwrap();
        bytes
    }

    fn restore<F: Vectors>(&self, bytes: &[u8], options: SessionOptions) -> Result<Session<F>, SnapshotError> {
        Session::restore(&self.plan, options, &mut &*bytes)
    }
}

fn rows(shape: &[PartShape]) -> Vec<(usize, usize)> {
    shape.iter().map(|part| (part.first.unwrap(), part.rows)).collect()
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let model = Model::of("llama-plain");
    let options = SessionOptions { capacity: Some(5), ..Default::default() };
    let mut session = model.session::<f32>(options);
    model.feed(&mut session, 4);
    let before = model.snapshot(&session);
    let vocab = model.plan.vocab_size as u32;
    let cases = [
        (vec![1, 2], vec![4, 5], StateError::Full { capacity: 5, len: 4, new: 2 }),
        (vec![1], vec![40], StateError::Position { position: 40, length: 40 }),
        (vec![1], vec![4, 5], StateError::Positions { tokens: 1, positions: 2 }),
        (vec![], vec![], StateError::Positions { tokens: 0, positions: 0 }),
        (vec![vocab], vec![4], StateError::Token { token: vocab, vocab: vocab as usize }),
    ];
    for (tokens, positions, wanted) in cases {
        let error = model.try_feed(&mut session, tokens, positions).unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&wanted));
        assert_eq!(model.snapshot(&session), before, "{wanted}");
    }
    // What fits exactly is taken.
    assert_eq!(model.feed(&mut session, 1), model.whole::<f32>(5, 1));
    assert_eq!((session.len(), session.length(), session.is_empty()), (5, 40, false));
}

#[test]
fn a_trimmed_session_goes_on_as_if_the_rest_had_never_been() {
    let model = Model::of(WINDOW);
    for keep in [0, 1, 6, 7, 8, 18] {
        let mut session = model.session::<f32>(SessionOptions::default());
        model.feed(&mut session, keep);
        model.feed_from(&mut session, 19 - keep, 1);
        session.trim(keep).unwrap();
        assert_eq!(session.len(), keep);
        assert_eq!(rows(&session.shape()), [(0, keep); 6]);
        assert_eq!(model.feed(&mut session, 19 - keep), model.whole::<f32>(19, 19 - keep), "trimmed to {keep}");
    }
    let mut session = model.session::<f32>(SessionOptions::default());
    model.feed(&mut session, 3);
    assert_eq!(session.trim(4), Err(StateError::TooShort { len: 3, wanted: 4 }));
    assert_eq!(session.trim(3), Ok(()));
    assert_eq!(session.len(), 3);
}

#[test]
fn a_rolling_window_keeps_what_is_needed_and_says_what_is_gone() {
    let model = Model::of(WINDOW);
    let mut session = model.session::<f32>(ROLLING);
    let mut logits = Vec::new();
    let mut most = 0;
    for n in [1, 6, 1, 8, 1, 1, 1] {
        logits.extend(model.feed(&mut session, n));
        most = most.max(session.shape()[0].rows);
    }
    assert_eq!(logits, model.whole::<f32>(19, 19));
    assert!((6..14).contains(&most), "{most} rows");
    // 16 tokens at once left 6 rows, and 3 were added: tokens 10 to 18 are there.
    assert_eq!(rows(&session.shape()), [(10, 9); 6]);
    let before = model.snapshot(&session);
    // The token after 15 others sees tokens 9 to 15.
    assert_eq!(session.trim(15), Err(StateError::Dropped { wanted: 15, first: 10 }));
    assert_eq!(model.snapshot(&session), before, "nothing has changed");
    session.trim(16).unwrap();
    assert_eq!(model.feed(&mut session, 3), model.whole::<f32>(19, 3));
    session.trim(0).unwrap();
    assert_eq!(model.feed(&mut session, 19), model.whole::<f32>(19, 19));
}

#[test]
fn a_fork_and_its_origin_do_not_see_each_other() {
    let model = Model::of(WINDOW);
    let mut origin = model.session::<f32>(SessionOptions::default());
    model.feed(&mut origin, 9);
    let mut fork = origin.fork();
    let mut other = fork.fork();
    model.feed_from(&mut origin, 3, 5);
    assert_eq!(model.feed(&mut fork, 10), model.whole::<f32>(19, 10));
    model.feed_from(&mut fork, 1, 3);
    assert_eq!((origin.len(), fork.len(), other.len()), (12, 20, 9));
    assert_eq!(model.feed(&mut other, 10), model.whole::<f32>(19, 10));
}

#[test]
fn a_reset_session_is_new() {
    let model = Model::of(WINDOW);
    for options in [SessionOptions::default(), ROLLING] {
        let mut session = model.session::<f32>(options);
        model.feed_from(&mut session, 19, 2);
        session.reset();
        assert!(session.is_empty());
        assert_eq!(rows(&session.shape()), [(0, 0); 6]);
        assert_eq!(model.snapshot(&session), model.snapshot(&model.session::<f32>(options)));
        assert_eq!(model.feed(&mut session, 19), model.whole::<f32>(19, 19));
    }
}

fn round_trip<F: Vectors>(options: SessionOptions) {
    let model = Model::of(WINDOW);
    for n in [0, 1, 8, 18] {
        let mut session = model.session::<F>(options);
        model.feed(&mut session, n);
        let bytes = model.snapshot(&session);
        let mut restored = model.restore::<F>(&bytes, options).unwrap();
        assert_eq!(model.snapshot(&restored), bytes);
        assert_eq!((restored.len(), restored.length(), restored.shape()), (n, 40, session.shape()));
        assert_eq!(model.feed(&mut restored, 19 - n), model.whole::<F>(19, 19 - n), "after {n}");
    }
}

#[test]
fn a_restored_session_goes_on_with_the_same_bits() {
    round_trip::<f32>(SessionOptions::default());
    round_trip::<f64>(SessionOptions::default());
    round_trip::<f32>(ROLLING);
}

#[test]
fn a_damaged_snapshot_is_refused() {
    let model = Model::of(WINDOW);
    let mut session = model.session::<f32>(SessionOptions::default());
    model.feed(&mut session, 9);
    let sound = model.snapshot(&session);
    let at = sound.iter().position(|&b| b == b'\n').unwrap();
    let edited = |edit: &dyn Fn(&mut Value)| {
        let mut header: Value = serde_json::from_slice(&sound[..at]).unwrap();
        edit(&mut header);
        [header.to_string().as_bytes(), &sound[at..]].concat()
    };
    assert!(model.restore::<f32>(&edited(&|_| {}), SessionOptions::default()).is_ok(), "editing damages nothing");
    let set = |path: &'static str, value: Value| {
        edited(&move |header: &mut Value| *header.pointer_mut(path).unwrap() = value.clone())
    };
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (Vec::new(), "not a session snapshot"),
        (b"PK\x03\x04\n".to_vec(), "not a session snapshot"),
        (sound[..at / 2].to_vec(), "not a session snapshot"),
        (set("/format", json!("oracle-session-v2\u{1b}")), "found oracle-session-v2\\u{1b}"),
        (edited(&|header| header["more"] = json!(1)), "unknown field"),
        (set("/plan_sha256", json!("00")), "plan_sha256 is 00"),
        (set("/bits", json!(64)), "float type is 64; expected 32"),
        (edited(&|header| drop(header["layers"].as_array_mut().unwrap().pop())), "number of layers is 2; expected 3"),
        (sound[..sound.len() - 1].to_vec(), "ends early or goes on too long"),
        ([&sound[..], b"\0"].concat(), "ends early or goes on too long"),
        (set("/len", json!(8)), "layer 0 of the snapshot: expected keys up to token 8, found 9 rows from token 0 on"),
        (set("/layers/1/0/first", json!(1)), "layer 1 of the snapshot: expected keys up to token 9"),
        (set("/layers/1/0/first", json!(u64::MAX)), "layer 1 of the snapshot: expected keys up to token 9"),
        (set("/layers/2/1/name", json!("keys")), "layer 2 of the snapshot: expected keys of 28 columns, values of 28"),
        (set("/layers/0/0/cols", json!(u64::MAX)), "ends early or goes on too long"),
        (edited(&|header| drop(header["layers"][1].as_array_mut().unwrap().pop())), "ends early or goes on too long"),
        (
            edited(&|header| {
                for part in header["layers"][0].as_array_mut().unwrap() {
                    (part["rows"], part["cols"]) = (json!(9), json!(14));
                }
                for part in header["layers"][1].as_array_mut().unwrap() {
                    (part["rows"], part["cols"]) = (json!(9), json!(42));
                }
            }),
            "layer 0 of the snapshot: expected keys of 28 columns, values of 28",
        ),
    ];
    for (bytes, wanted) in cases {
        let error = model.restore::<f32>(&bytes, SessionOptions::default()).map(|s| s.len()).unwrap_err().to_string();
        common::assert_says(&error, &[wanted]);
    }
    // A session that keeps everything can't take what a rolling one has left.
    let mut rolling = model.session::<f32>(ROLLING);
    model.feed(&mut rolling, 16);
    let error = model.restore::<f32>(&model.snapshot(&rolling), SessionOptions::default()).map(drop).unwrap_err();
    assert!(error.to_string().contains("the next token needs tokens from 0 on, found those from 10 on"), "{error}");
    // A snapshot of one model is none of another.
    let other = Model::of("llama-plain");
    let error = other.restore::<f32>(&sound, SessionOptions::default()).map(drop).unwrap_err();
    assert!(error.to_string().contains("plan_sha256"), "{error}");
}

#[test]
fn each_cache_format_moves_the_result_a_little_and_no_schedule_matters() {
    let model = Model::of(WINDOW);
    let exact = model.whole::<f32>(19, 19);
    // Half a unit in the last place, more or less, times what two layers make of it.
    for (cache, most) in [
        (CacheFormat::F16, 0.01),
        (CacheFormat::Bf16, 0.1),
        (CacheFormat::Q8_0, 0.1),
        (CacheFormat::Fp8, 1.0),
        (CacheFormat::Q4_0, 2.0),
    ] {
        let options = SessionOptions { cache, ..Default::default() };
        let whole = model.feed(&mut model.session::<f32>(options), 19);
        let apart = whole.iter().zip(&exact).fold(0.0f64, |m, (a, b)| m.max((a - b).abs()));
        assert!(apart > 0.0 && apart < most, "{cache}: {apart}");
        let mut session = model.session::<f32>(options);
        let pieces: Vec<f64> = [7, 1, 5, 6].into_iter().flat_map(|n| model.feed(&mut session, n)).collect();
        assert_eq!(pieces, whole, "{cache}");
    }
}
