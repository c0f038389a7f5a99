//! Counter-based random numbers: a pure function of seed, worker and position.

/// The output function of SplitMix64: a bijection of 64-bit words whose outputs on consecutive inputs look random.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A random word for a path of numbers, e.g. seed, worker, position.
pub(crate) fn hash(path: &[u64]) -> u64 {
    path.iter().fold(0, |state, &step| mix(state ^ mix(step)))
}

/// Scales a random word to 0..`bound` (Lemire's multiplication; biased by less than `bound` / 2⁶⁴).
pub(crate) fn below(word: u64, bound: usize) -> usize {
    ((u128::from(word) * bound as u128) >> 64) as usize
}

/// The image of `position` under the permutation of 0..`length` that `key` selects. No permutation is stored.
///
/// A Feistel network permutes the smallest even power of two that is at least `length`. Repeating it while the result
/// is outside 0..`length` (cycle walking) restricts it to that range. At most four repetitions are expected.
pub(crate) fn permuted(position: usize, length: usize, key: u64) -> usize {
    const ROUNDS: u64 = 6;
    debug_assert!(position < length);
    let bits = usize::BITS - (length - 1).leading_zeros();
    let half_bits = bits.div_ceil(2);
    let mask = (1u64 << half_bits) - 1;
    let mut at = position as u64;
    loop {
        let (mut left, mut right) = (at >> half_bits, at & mask);
        for round in 0..ROUNDS {
            let scrambled = mix(key ^ mix(round << 32 ^ right)) >> (64 - half_bits.max(1)) & mask;
            (left, right) = (right, left ^ scrambled);
        }
        at = left << half_bits | right;
        if at < length as u64 {
            return at as usize;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_permuted() {
        for length in (1..70).chain([255, 256, 257, 5000]) {
            let mut seen = vec![false; length];
            for position in 0..length {
                let index = permuted(position, length, length as u64);
                assert!(!std::mem::replace(&mut seen[index], true), "{index} of {length} twice");
            }
        }
    }

    #[test]
    fn permutations_of_three_are_equally_likely() {
        let mut counts = std::collections::BTreeMap::new();
        for key in 0..60_000 {
            let order: Vec<usize> = (0..3).map(|position| permuted(position, 3, hash(&[key]))).collect();
            *counts.entry(order).or_insert(0u32) += 1;
        }
        // Six orders, 10,000 ± 91 each if all are equally likely; a Feistel network of 4 cells is only nearly so.
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|count| (9_000..11_000).contains(count)), "{counts:?}");
    }

    #[test]
    fn scaled_words_cover_the_range_evenly() {
        let mut counts = [0u32; 10];
        for position in 0..100_000 {
            counts[below(hash(&[1, 2, position]), 10)] += 1;
        }
        // 10,000 ± 95 each.
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }
}
