/// SplitMix64: random numbers that a seed repeats.
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number from 0 to `most`.
    pub(super) const fn up_to(&mut self, most: u64) -> u64 {
        ((self.next() as u128 * (most as u128 + 1)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_numbers_and_they_cover_the_range() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            (0..1_000).map(|_| random.up_to(9)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        assert!((0..=9).all(|number| numbers(7).contains(&number)));
        assert!(numbers(7).iter().all(|&number| number <= 9));
        assert_eq!(Random::new(7).up_to(0), 0);
    }
}
