//! A set of small integers stored as bits, with searches in both directions.

/// How many words hold `bits` bits.
pub(super) fn words(bits: usize) -> usize {
    bits.div_ceil(64)
}

/// Adds `bit` to the set.
pub(super) fn insert(set: &mut [u64], bit: usize) {
    set[bit / 64] |= 1 << (bit % 64);
}

/// Removes `bit` from the set.
pub(super) fn remove(set: &mut [u64], bit: usize) {
    set[bit / 64] &= !(1 << (bit % 64));
}

/// The smallest member that is at least `from`.
pub(super) fn first_from(set: &[u64], from: usize) -> Option<usize> {
    let mut word = from / 64;
    let mut bits = set.get(word)? & (!0 << (from % 64));
    while bits == 0 {
        word += 1;
        bits = *set.get(word)?;
    }
    Some(word * 64 + bits.trailing_zeros() as usize)
}

/// The largest member below `end`.
pub(super) fn last_before(set: &[u64], end: usize) -> Option<usize> {
    let mut word = end / 64;
    // A whole word below `end` needs no mask; the word of `end` may lie past the set.
    let mut bits = set.get(word).map_or(0, |bits| bits & !(!0 << (end % 64)));
    while bits == 0 {
        word = word.checked_sub(1)?;
        bits = set[word];
    }
    Some(word * 64 + 63 - bits.leading_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_neighbours_across_words() {
        let mut set = vec![0; words(192)];
        for bit in [0, 63, 64, 191] {
            insert(&mut set, bit);
        }
        assert_eq!(first_from(&set, 0), Some(0));
        assert_eq!(first_from(&set, 1), Some(63));
        assert_eq!(first_from(&set, 65), Some(191));
        assert_eq!(first_from(&set, 192), None);
        assert_eq!(last_before(&set, 192), Some(191));
        assert_eq!(last_before(&set, 191), Some(64));
        assert_eq!(last_before(&set, 64), Some(63));
        assert_eq!(last_before(&set, 0), None);
        remove(&mut set, 63);
        assert_eq!(last_before(&set, 64), Some(0));
    }
}
