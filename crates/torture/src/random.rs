//! Random numbers that depend only on a seed and on what they are for.

/// A random number of this seed and `salt`.
pub(crate) fn mixed(seed: u64, salt: [u64; 3]) -> u64 {
    let mut mixed = seed;
    for part in salt {
        // SplitMix64's finalizer.
        mixed = mixed.wrapping_add(part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
    }
    mixed
}

/// Maps a random number to [0, 1).
pub(crate) fn unit(random: u64) -> f64 {
    (random >> 11) as f64 / (1_u64 << 53) as f64
}
