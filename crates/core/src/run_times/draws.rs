//! Random numbers as a pure function of a seed and a position.

/// A stream of random numbers that depends on its path only, for example seed, iteration and worker.
///
/// The generator is wyrand (Wang Yi): a counter, and the folded product of it with a changed copy of itself.
#[derive(Debug, Clone)]
pub struct Draws {
    state: u64,
    /// The other half of the last pair of normal draws.
    spare: Option<f64>,
}

impl Draws {
    /// The stream of a path.
    pub fn at(path: &[u64]) -> Self {
        let mut draws = Draws { state: 0, spare: None };
        for &step in path {
            let word = draws.word();
            draws.state = word ^ step.wrapping_mul(0x8ebc_6af0_9c88_c6e3);
            draws.state = draws.word();
        }
        draws
    }

    fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0xa076_1d64_78bd_642f);
        let product = u128::from(self.state) * u128::from(self.state ^ 0xe703_7ed1_a0b4_28db);
        (product >> 64) as u64 ^ product as u64
    }

    /// A uniform number between 0 and 1, both excluded.
    pub fn unit(&mut self) -> f64 {
        ((self.word() >> 12) as f64 + 0.5) / (1u64 << 52) as f64
    }

    /// A standard normal number (Box and Muller, 1958).
    pub fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = (-2.0 * libm::log(self.unit())).sqrt();
        let (sine, cosine) = libm::sincos(std::f64::consts::TAU * self.unit());
        self.spare = Some(radius * sine);
        radius * cosine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_pure_and_differ_by_path() {
        let first = |path: &[u64]| Draws::at(path).word();
        assert_eq!(first(&[1, 2, 3]), first(&[1, 2, 3]));
        let paths = [vec![], vec![0], vec![1], vec![0, 0], vec![0, 1], vec![1, 0], vec![1, 2, 3], vec![3, 2, 1]];
        let words: std::collections::BTreeSet<u64> = paths.iter().map(|path| first(path)).collect();
        assert_eq!(words.len(), paths.len());
    }

    #[test]
    fn draws_along_a_stream_and_across_streams_are_normal() {
        let mut stream = Draws::at(&[5]);
        let along: Vec<f64> = (0..100_000).map(|_| stream.normal()).collect();
        let across: Vec<f64> = (0..100_000).map(|position| Draws::at(&[5, position]).normal()).collect();
        for values in [along, across] {
            let moment = |power: i32| values.iter().map(|value| value.powi(power)).sum::<f64>() / values.len() as f64;
            // Five deviations of each moment's estimate.
            for (power, expected, deviation) in [(1, 0.0, 1.0), (2, 1.0, 1.5), (3, 0.0, 3.9), (4, 3.0, 9.8)] {
                assert!((moment(power) - expected).abs() < 5.0 * deviation / 316.0, "{power}: {}", moment(power));
            }
            let neighbours: f64 = values.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>() / values.len() as f64;
            assert!(neighbours.abs() < 5.0 / 316.0, "{neighbours}");
        }
    }
}
