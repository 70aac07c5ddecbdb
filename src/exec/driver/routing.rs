//! Which experts a token goes to.

use crate::model::plan::{Groups, Router, Scoring};
use crate::ops::Float;
use crate::ops::activation::sigmoid;
use crate::ops::softmax::softmax;

/// The experts that one token goes to, in ascending order, each with its weight.
///
/// `logits` are the router's, one per expert, and so are `bias` (added to the scores for the choice alone) and `scales`.
/// Of two that are equal the one with the lower index is chosen. Without a bias and without groups the logits
/// themselves decide: each score grows with its logit.
pub(super) fn route<F: Float>(
    router: &Router,
    logits: &[F],
    bias: Option<&[F]>,
    scales: Option<&[F]>,
) -> Vec<(usize, F)> {
    let mut scores = logits.to_vec();
    match router.scoring {
        Scoring::Softmax => softmax(&mut scores, None),
        Scoring::Sigmoid => scores.iter_mut().for_each(|v| *v = sigmoid(*v)),
        Scoring::SoftmaxOfChosen => {}
    }
    let mut choice = if bias.is_none() && router.groups.is_none() { logits.to_vec() } else { scores.clone() };
    if let Some(bias) = bias {
        choice.iter_mut().zip(bias).for_each(|(v, &b)| *v += b);
    }
    let allowed =
        router.groups.as_ref().map_or_else(|| vec![true; choice.len()], |groups| best_groups(groups, &choice));
    let chosen = top(&choice, &allowed, router.num_experts_per_tok);

    let weigh = if router.selection_bias_weighs { &choice } else { &scores };
    let mut weights: Vec<F> = chosen.iter().map(|&e| weigh[e]).collect();
    if router.scoring == Scoring::SoftmaxOfChosen {
        softmax(&mut weights, None);
    }
    if router.norm_topk_prob {
        let mut sum = F::ZERO;
        for &w in &weights {
            sum += w;
        }
        let sum = sum + F::from_f64(router.norm_topk_eps);
        weights.iter_mut().for_each(|w| *w = *w / sum);
    }
    if router.routed_scaling_factor != 1.0 {
        let factor = F::from_f64(router.routed_scaling_factor);
        weights.iter_mut().for_each(|w| *w *= factor);
    }
    if let Some(scales) = scales {
        weights.iter_mut().zip(&chosen).for_each(|(w, &e)| *w *= scales[e]);
    }
    chosen.into_iter().zip(weights).collect()
}

/// Whether each expert is in one of the best groups.
fn best_groups<F: Float>(groups: &Groups, choice: &[F]) -> Vec<bool> {
    let size = choice.len() / groups.n_group;
    let best = |group: &[F], n: usize| top(group, &vec![true; group.len()], n);
    let scores: Vec<F> = choice
        .chunks_exact(size)
        .map(|group| {
            let mut sum = F::ZERO;
            for e in best(group, if groups.sum_of_two { 2 } else { 1 }) {
                sum += group[e];
            }
            sum
        })
        .collect();
    let chosen = best(&scores, groups.topk_group);
    (0..choice.len()).map(|e| chosen.contains(&(e / size))).collect()
}

/// The indices of the `n` largest allowed values, in ascending order. What is not a number counts as larger than any
/// number, so that it is not hidden.
fn top<F: Float>(values: &[F], allowed: &[bool], n: usize) -> Vec<usize> {
    let nan = |v: F| v.partial_cmp(&v).is_none();
    let larger = |a: F, b: F| a > b || (nan(a) && !nan(b));
    let mut taken = vec![false; values.len()];
    for _ in 0..n {
        let free = (0..values.len()).filter(|&i| allowed[i] && !taken[i]);
        match free.reduce(|best, i| if larger(values[i], values[best]) { i } else { best }) {
            Some(best) => taken[best] = true,
            None => break,
        }
    }
    (0..values.len()).filter(|&i| taken[i]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::plan::{Linear, Weight};

    fn router(scoring: Scoring, num_experts_per_tok: usize) -> Router {
        Router {
            linear: Linear::new(Weight::whole("router".to_owned(), &[4, 2]), None),
            norm: None,
            input_scale: 1.0,
            scoring,
            num_experts_per_tok,
            selection_bias: None,
            selection_bias_weighs: false,
            groups: None,
            norm_topk_prob: false,
            norm_topk_eps: 0.0,
            routed_scaling_factor: 1.0,
            expert_scale: None,
            weights_input: false,
        }
    }

    #[track_caller]
    fn assert_routed(found: &[(usize, f64)], expected: &[(usize, f64)]) {
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (f, e) in found.iter().zip(expected) {
            assert!(f.0 == e.0 && (f.1 - e.1).abs() < 1e-14 * e.1, "{found:?} is not {expected:?}");
        }
    }

    /// Logits whose softmax is 1/10, 4/10, 2/10, 3/10.
    fn logits() -> [f64; 4] {
        [1f64.ln(), 4f64.ln(), 2f64.ln(), 3f64.ln()]
    }

    #[test]
    fn the_best_are_weighted_by_their_share_of_all_or_of_the_chosen() {
        let all = router(Scoring::Softmax, 2);
        assert_routed(&route(&all, &logits(), None, None), &[(1, 0.4), (3, 0.3)]);
        let chosen = router(Scoring::SoftmaxOfChosen, 2);
        assert_routed(&route(&chosen, &logits(), None, None), &[(1, 4.0 / 7.0), (3, 3.0 / 7.0)]);
        let normed = Router { norm_topk_prob: true, ..all.clone() };
        assert_routed(&route(&normed, &logits(), None, None), &[(1, 4.0 / 7.0), (3, 3.0 / 7.0)]);
        let eps = Router { norm_topk_eps: 0.1, routed_scaling_factor: 2.0, ..normed };
        assert_routed(&route(&eps, &logits(), None, None), &[(1, 1.0), (3, 0.75)]);
        let scales = [1.0, 10.0, 1.0, 100.0];
        assert_routed(&route(&all, &logits(), None, Some(&scales)), &[(1, 4.0), (3, 30.0)]);
    }

    #[test]
    fn the_sigmoid_looks_at_each_expert_by_itself() {
        let found = route(&router(Scoring::Sigmoid, 1), &[0.0f64, 3f64.ln(), -1.0], None, None);
        assert_routed(&found, &[(1, 0.75)]);
    }

    #[test]
    fn a_bias_counts_for_the_choice_alone() {
        let bias = [0.5, 0.0, 0.0, 0.0];
        assert_routed(&route(&router(Scoring::Softmax, 2), &logits(), Some(&bias), None), &[(0, 0.1), (1, 0.4)]);
    }

    #[test]
    fn only_experts_of_the_best_groups_are_chosen() {
        // Groups (0, 1) and (2, 3): the best one is in the first, the best two are in the second.
        let logits = [1f64.ln(), 4f64.ln(), 2.5f64.ln(), 3f64.ln()];
        let with = |sum_of_two| Router {
            groups: Some(Groups { n_group: 2, topk_group: 1, sum_of_two }),
            ..router(Scoring::Softmax, 2)
        };
        assert_routed(&route(&with(false), &logits, None, None), &[(0, 1.0 / 10.5), (1, 4.0 / 10.5)]);
        assert_routed(&route(&with(true), &logits, None, None), &[(2, 2.5 / 10.5), (3, 3.0 / 10.5)]);
    }

    #[test]
    fn of_equals_the_first_is_chosen_and_nothing_hides_a_nan() {
        let found = route(&router(Scoring::SoftmaxOfChosen, 2), &[1.0f32, 2.0, 1.0, 1.0], None, None);
        assert_eq!(found.iter().map(|&(e, _)| e).collect::<Vec<_>>(), [0, 1]);
        for scoring in [Scoring::Softmax, Scoring::Sigmoid, Scoring::SoftmaxOfChosen] {
            let found = route(&router(scoring, 1), &[1.0f32, 2.0, f32::NAN, 1.0], None, None);
            assert!(found[0].1.is_nan(), "{found:?}");
        }
        let found = route(&router(Scoring::Sigmoid, 9), &[1.0f32, 2.0], None, None);
        assert_eq!(found.len(), 2, "there are no more");
    }
}
