//! Every fixture, read as from a disk: ahead of time, in the order in which it is used, and each tensor once.

mod truth;
mod watched;

use checkpoint_oracle::checkpoint::Source;
use checkpoint_oracle::exec::reference::Reference;
use checkpoint_oracle::exec::{Executor, Input, Observer, Rows, Session, Stage};
use checkpoint_oracle::ops::Matrix;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use truth::{fixtures, goldens, load};
use watched::Watched;

/// The experts that were chosen, per layer.
#[derive(Default)]
struct Chosen(BTreeMap<usize, BTreeSet<usize>>);

impl Observer<f32> for Chosen {
    fn see(&mut self, _: Stage, _: &Matrix<f32>) {}

    fn experts(&mut self, layer: usize, chosen: &[Vec<(usize, f32)>], _: usize) {
        self.0.insert(layer, chosen.iter().flatten().map(|&(e, _)| e).collect());
    }
}

#[test]
fn a_pass_reads_what_it_needs_once_and_ahead_of_time() {
    for fixture in fixtures() {
        let (plan, source) = load(&fixture);
        let golden = &goldens(&fixture)[0];
        let watched = Arc::new(Watched::new(source));
        let source: Arc<dyn Source> = Arc::<Watched>::clone(&watched);
        let length = golden.positions.iter().max().map_or(1, |&p| p as usize + 1);
        let mut session = Session::new(&plan, length);
        let input = Input { session: &mut session, tokens: golden.tokens.clone(), positions: golden.positions.clone() };
        let mut chosen = Chosen::default();
        let kernels = Reference::default();
        Executor::new(&plan, &source, &kernels).run(vec![input], Rows::Last, &mut chosen).unwrap();
        watched.check(&plan, &|layer, expert| chosen.0[&layer].contains(&expert), &fixture);
    }
}
