//! Searches of a sorted list that begin where the last one ended.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Where the last search of a sorted list ended. Who asks about the addresses of a function, or of
/// one function after the other, is answered without a search. It is only a hint: any CPU may
/// change it at any moment, and the answer does not depend on it. The default is that of no search.
#[derive(Debug, Default)]
pub struct LastSearch(AtomicUsize);

impl LastSearch {
    /// How many elements of `sorted` are `before` what is looked for: what
    /// [`partition_point`](slice::partition_point) says. Any context.
    pub fn of<T>(&self, sorted: &[T], before: impl Fn(&T) -> bool) -> usize {
        let last = self.0.load(Relaxed);
        let ends_at = |end: usize| {
            let (head, tail) = sorted.split_at_checked(end)?;
            let is_end = head.last().is_none_or(&before) && !tail.first().is_some_and(&before);
            is_end.then_some(end)
        };
        if let Some(same) = ends_at(last) {
            return same;
        }
        let found = ends_at(last.wrapping_add(1)).unwrap_or_else(|| sorted.partition_point(before));
        self.0.store(found, Relaxed);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_does_not_depend_on_the_search_before() {
        let lists: [&[u32]; 4] = [&[], &[10], &[10, 20, 20, 30], &[0, 10, 20, 30, 40, 50]];
        for sorted in lists {
            // Also hints that are none, as that of another list.
            for hint in [0, 1, 2, 3, 4, 5, 6, 7, usize::MAX] {
                for wanted in 0..60 {
                    let before = |number: &u32| *number <= wanted;
                    let search = LastSearch(AtomicUsize::new(hint));
                    let found = search.of(sorted, before);
                    let told = (sorted, hint, wanted);
                    assert_eq!(found, sorted.partition_point(before), "{told:?}");
                    // The next search begins there, and finds the same.
                    assert_eq!(search.of(sorted, before), found, "{told:?}");
                }
            }
        }
    }
}
