//! A small generator of reproducible numbers: the same seed gives the same numbers everywhere.

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), from that seed on.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns 64 bits; the first of neighbouring seeds are as unlike as any.
    #[inline]
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 to below 1.
    fn unit(&mut self) -> f64 {
        // 53 bits: every value is exact.
        (self.bits() >> 11) as f64 / 9_007_199_254_740_992.0
    }

    /// Returns a normally distributed number (Box-Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}
