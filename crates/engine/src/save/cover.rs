//! Whether ranges have places, both in order.

use std::iter::Peekable;
use std::ops::Range;

/// Ranges that do not overlap, in order, as places are passed.
pub struct Cover<I: Iterator>(Peekable<I>);

impl<'r, T: Copy + Ord + 'r, I: Iterator<Item = &'r Range<T>>> Cover<I> {
    pub fn of(ranges: I) -> Cover<I> {
        Cover(ranges.peekable())
    }

    /// Whether one range has all of a place, which begins no sooner than the one that was asked about before.
    pub fn has(&mut self, place: Range<T>) -> bool {
        while self.0.next_if(|range| range.end <= place.start).is_some() {}
        self.0.peek().is_some_and(|range| range.start <= place.start && place.end <= range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_in_one_range_or_in_none() {
        let ranges = [2..5, 5..9, 12..13];
        let mut cover = Cover::of(ranges.iter());
        let places = [0..2, 1..3, 2..4, 2..5, 4..6, 5..9, 8..9, 8..10, 9..12, 12..13, 13..14];
        let expected = [false, false, true, true, false, true, true, false, false, true, false];
        assert_eq!(places.map(|place| cover.has(place)), expected);
    }
}
