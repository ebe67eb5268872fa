//! Memory that is short on request.

use crate::glue;

/// Runs `work` with room for `count` allocations. Returns its result, and whether it has asked for
/// more.
pub fn with_room_for<T>(count: u64, work: impl FnOnce() -> T) -> (T, bool) {
    let outcome = glue::with_room_for(count, work);
    (outcome.result, outcome.refused > 0)
}

/// Does what [`with_room_for`] does, and tells how many bytes `work` has taken and not given back.
pub fn kept_with_room_for<T>(count: u64, work: impl FnOnce() -> T) -> (T, bool, i64) {
    let outcome = glue::with_room_for(count, work);
    (outcome.result, outcome.refused > 0, outcome.kept)
}

/// Counts the allocations of `work`, all of which are refused.
pub fn allocations(work: impl FnOnce()) -> u64 {
    glue::with_room_for(0, work).refused
}
