//! A random sample that a seed repeats.

use instruction_cases::Random;

/// Draws `count` of `all` without repetition, in the order of the draw. The same seed and list give
/// the same sample. The parts, which `part` tells apart, take turns until they are used up, so that
/// large ones leave room for small ones.
pub fn draw<T, P: PartialEq>(
    mut all: Vec<T>,
    part: impl Fn(&T) -> P,
    seed: u64,
    count: usize,
) -> Vec<T> {
    let mut random = Random::of_case(seed, 0);
    for drawn in 0..all.len() {
        let rest = (all.len() - drawn) as u64;
        all.swap(drawn, drawn + random.below(rest) as usize);
    }
    let mut parts: Vec<(P, usize)> = Vec::new();
    let mut in_turn = Vec::with_capacity(all.len());
    for item in all {
        let part = part(&item);
        let known = parts.iter().position(|(known, _)| *known == part);
        let at = known.unwrap_or_else(|| {
            parts.push((part, 0));
            parts.len() - 1
        });
        in_turn.push((parts[at].1, item));
        parts[at].1 += 1;
    }
    in_turn.sort_by_key(|(turn, _)| *turn);
    in_turn
        .into_iter()
        .map(|(_, item)| item)
        .take(count)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_each_once_and_is_the_same_again() {
        let draw = |seed, count| draw((0..100).collect(), |_| (), seed, count);
        let mut all = draw(1, 1000);
        all.sort_unstable();
        assert_eq!(all, Vec::from_iter(0..100));
        assert_eq!(draw(1, 10), draw(1, 10));
        assert_ne!(draw(1, 10), draw(2, 10));
        assert_eq!(
            draw(1, 10),
            draw(1, 100)[..10],
            "a larger sample begins with the smaller one"
        );
    }

    #[test]
    fn parts_take_turns() {
        let sample = draw((0..100).collect(), |number| *number < 90, 1, 20);
        assert_eq!(sample.iter().filter(|number| **number < 90).count(), 10);
        let sample = draw((0..100).collect(), |number| *number < 90, 1, 100);
        assert_eq!(sample.len(), 100);
    }
}
