//! Whether two files speak of the same thing at all.

use super::comparison::Input;
use crate::Problem;

/// Every reason why the two cannot be compared, with both values in each; empty where they can.
pub fn refusals(a: &Input, b: &Input, allow_class_mismatch: bool) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut refuse = |code, place: &str, left: String, right: String, more: String| {
        let message = format!("{} has {left}, {} has {right}{more}", a.name, b.name);
        problems.push(Problem::new(code, place, message));
    };
    if a.file.tokens != b.file.tokens {
        let (left, right) = (listed(&a.file.tokens), listed(&b.file.tokens));
        refuse("tokens-differ", "tokens", left, right, token_difference(a, b));
    }
    if a.file.vocab() != b.file.vocab() {
        let (left, right) = (a.file.vocab().to_string(), b.file.vocab().to_string());
        refuse("vocab-differs", "vocab", left, right, String::new());
    }
    let (left, right) = (a.file.explicit_positions(), b.file.explicit_positions());
    if left != right {
        let shown = |list: Option<&[u32]>| list.map_or("the default 0, 1, 2, ...".to_string(), listed);
        refuse("positions-differ", "positions", shown(left), shown(right), String::new());
    }
    let (left, right) = (&a.file.numeric_class, &b.file.numeric_class);
    if left != right && !allow_class_mismatch {
        refuse("class-differs", "numeric_class", left.to_string(), right.to_string(), String::new());
    }
    problems
}

/// A list of numbers, cut where it gets long.
fn listed(numbers: &[u32]) -> String {
    const LIMIT: usize = 24;
    let text = numbers.iter().take(LIMIT).map(u32::to_string).collect::<Vec<_>>().join(",");
    if numbers.len() > LIMIT { format!("{text},... ({} in all)", numbers.len()) } else { text }
}

/// Where two different token lists part, and the likely reason where it is a leading token.
fn token_difference(a: &Input, b: &Input) -> String {
    let (left, right) = (&a.file.tokens, &b.file.tokens);
    if let Some((extra, rest)) = right.split_first()
        && rest == left
    {
        return leading_token(*extra, rest, b.name, a.name);
    }
    if let Some((extra, rest)) = left.split_first()
        && rest == right
    {
        return leading_token(*extra, rest, a.name, b.name);
    }
    let same = left.iter().zip(right).take_while(|(l, r)| l == r).count();
    match (left.len() == right.len(), left.get(1..) == right.get(1..)) {
        (true, true) => "; only the first token differs: another beginning-of-sequence token".to_string(),
        _ => format!("; they part at token {same}, counted from 0"),
    }
}

fn leading_token(extra: u32, rest: &[u32], longer: &str, shorter: &str) -> String {
    let reason = if rest.first() == Some(&extra) {
        format!("the beginning-of-sequence token is doubled in {longer}")
    } else {
        format!("a beginning-of-sequence token is missing in {shorter}, or unwanted in {longer}")
    };
    format!("; only a leading token differs: {longer} has {extra} in front of the same tokens, so {reason}")
}
