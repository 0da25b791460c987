//! How the stored values of a tensor follow from those of its parameter.

/// `stored = parameter * scale + offset`, the same for all elements of a tensor.
///
/// Values have the unit that the model computes in; `scale` is what one unit of the parameter is in the stored tensor,
/// `offset` what a parameter of zero is stored as. A scale of zero would lose the values, and no tensor has one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    /// The factor, not zero.
    pub scale: f64,
    /// What is added after scaling, in units of the stored values.
    pub offset: f64,
}

impl Affine {
    /// Stored as the parameter is.
    pub const IDENTITY: Affine = Affine { scale: 1.0, offset: 0.0 };

    /// Returns whether values are stored as the parameter's are.
    pub fn is_identity(self) -> bool {
        self == Affine::IDENTITY
    }

    /// Returns what a value of the parameter is stored as.
    pub fn apply(self, parameter: f64) -> f64 {
        parameter * self.scale + self.offset
    }

    /// Returns what makes a value that is stored like `wanted` of one that is `stored` otherwise: the one undone, then the
    /// other. The scale comes of one division; an inverse that is composed afterwards would be rounded twice.
    pub fn between(stored: Affine, wanted: Affine) -> Affine {
        // stored = p·s + o, so p = (stored - o)/s, and wanted = p·t + u.
        let scale = wanted.scale / stored.scale;
        Affine { scale, offset: wanted.offset - stored.offset * scale }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_one_way_is_made_what_is_stored_another_way() {
        let (gemma, scaled) = (Affine { scale: 1.0, offset: -1.0 }, Affine { scale: -0.25, offset: 0.5 });
        for (from, to) in [(gemma, scaled), (scaled, gemma), (Affine::IDENTITY, scaled), (scaled, scaled)] {
            for parameter in [-3.5, 0.0, 0.75, 1024.0] {
                assert_eq!(Affine::between(from, to).apply(from.apply(parameter)), to.apply(parameter));
            }
        }
        assert!(
            Affine::between(scaled, scaled).is_identity() && !Affine::between(scaled, gemma).is_identity()
        );
        assert_eq!(Affine::between(Affine::IDENTITY, scaled), scaled);
    }

    #[test]
    fn a_scale_is_made_in_one_division() {
        // 1/49 is rounded, and 49 times that is not 1.
        let (from, to) = (Affine { scale: 49.0, offset: 0.0 }, Affine { scale: 49.0, offset: 1.0 });
        assert_eq!(Affine::between(from, to), Affine { scale: 1.0, offset: 1.0 });
    }
}
