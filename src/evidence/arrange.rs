//! Ways in which the rows of query, key and value projections can stand in one fused tensor.

/// A part of an attention module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The query projection.
    Query,
    /// The key projection.
    Key,
    /// The value projection.
    Value,
    /// The output projection.
    Output,
}

impl Part {
    /// The parts that a fused tensor can hold, in the usual order.
    pub const FUSED: [Part; 3] = [Part::Query, Part::Key, Part::Value];

    /// Returns the letter of the notation.
    pub const fn letter(self) -> &'static str {
        match self {
            Part::Query => "q",
            Part::Key => "k",
            Part::Value => "v",
            Part::Output => "o",
        }
    }
}

/// How many heads there are, and how large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Heads {
    /// Query heads.
    pub h: u64,
    /// Key/value heads.
    pub g: u64,
    /// The size of a head of q and k.
    pub d: u64,
    /// The size of a head of v.
    pub dv: u64,
}

impl Heads {
    /// Returns the heads of a part.
    pub const fn of(self, part: Part) -> u64 {
        match part {
            Part::Query | Part::Output => self.h,
            Part::Key | Part::Value => self.g,
        }
    }

    /// Returns the rows of a part; of the output projection its columns.
    pub const fn rows(self, part: Part) -> u64 {
        match part {
            Part::Query => self.h.saturating_mul(self.d),
            Part::Key => self.g.saturating_mul(self.d),
            Part::Value => self.g.saturating_mul(self.dv),
            Part::Output => self.h.saturating_mul(self.dv),
        }
    }
}

/// Which part's row stands at a place, and its number in that part's canonical order (heads slowest).
pub type Place = (Part, u32);

/// The parts of a fused tensor with their rows.
pub type Sizes = Vec<(Part, u64)>;

/// Parts in an order, cut into chunks: first the first chunk of each part, then the second of each, ….
///
/// One chunk is the parts one after the other, `(q + k + v)`; as many chunks as key/value heads is a fusion per head or
/// per group, `(g (q + k + v))`; as many as tensor-parallel shards is the fusion of shards; as many as rows interleaves
/// single rows, `(h d (q + k + v))`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Arrangement {
    /// How many chunks each part is cut into.
    pub chunks: u64,
    /// The order of the parts.
    pub order: Vec<Part>,
}

impl Arrangement {
    /// Returns what stands at each place, or `None` where the parts do not divide into the chunks.
    pub fn places(&self, sizes: &[(Part, u64)]) -> Option<Vec<Place>> {
        let mut places = Vec::new();
        for chunk in 0..self.chunks {
            for part in &self.order {
                let (_, rows) = sizes.iter().find(|(other, _)| other == part)?;
                let length = rows.checked_div(self.chunks).filter(|length| length * self.chunks == *rows)?;
                let start = chunk * length;
                places.extend((start..start + length).map(|index| (*part, index as u32)));
            }
        }
        Some(places)
    }

    /// Returns the arrangement in the notation, as far as it is one.
    pub fn describe(&self, sizes: &[(Part, u64)], heads: Option<Heads>) -> String {
        let shortest = sizes.iter().map(|(_, rows)| *rows).min().unwrap_or(0);
        let chunks = match (self.chunks, heads) {
            (1, _) => String::new(),
            (chunks, Some(heads)) if chunks == heads.h && chunks == heads.g => "h ".to_owned(),
            (chunks, Some(heads)) if chunks == heads.g => "g ".to_owned(),
            (chunks, Some(heads)) if chunks == shortest && heads.h == heads.g => "h d ".to_owned(),
            (chunks, _) => format!("{chunks} "),
        };
        let parts: Vec<&str> = self.order.iter().map(|part| part.letter()).collect();
        match chunks.is_empty() {
            true => format!("({})", parts.join(" + ")),
            false => format!("({chunks}({}))", parts.join(" + ")),
        }
    }
}

/// Returns every arrangement of parts of these sizes: each order, in every number of chunks that divides all of them.
pub fn candidates(sizes: &[(Part, u64)]) -> Vec<Arrangement> {
    let common = sizes.iter().fold(0, |common, (_, rows)| gcd(common, *rows));
    let mut all = Vec::new();
    for chunks in divisors(common) {
        let parts: Vec<Part> = sizes.iter().map(|(part, _)| *part).collect();
        all.extend(orders(&parts).into_iter().map(|order| Arrangement { chunks, order }));
    }
    all
}

fn gcd(first: u64, second: u64) -> u64 {
    if second == 0 { first } else { gcd(second, first % second) }
}

fn divisors(number: u64) -> Vec<u64> {
    let small: Vec<u64> = (1..=number.isqrt()).filter(|divisor| number.is_multiple_of(*divisor)).collect();
    let mut all: Vec<u64> = small.iter().flat_map(|divisor| [*divisor, number / divisor]).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn orders(parts: &[Part]) -> Vec<Vec<Part>> {
    if parts.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for at in 0..parts.len() {
        let mut rest = parts.to_vec();
        let first = rest.remove(at);
        all.extend(orders(&rest).into_iter().map(|mut order| {
            order.insert(0, first);
            order
        }));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPED: Heads = Heads { h: 6, g: 3, d: 10, dv: 7 };

    fn sizes() -> Sizes {
        Part::FUSED.into_iter().map(|part| (part, GROUPED.rows(part))).collect()
    }

    #[test]
    fn chunks_follow_one_another() {
        let per_group = Arrangement { chunks: 3, order: vec![Part::Query, Part::Value, Part::Key] };
        let places = per_group.places(&sizes()).expect("divides");
        assert_eq!(places.len(), 60 + 30 + 21);
        assert_eq!(places[19..21], [(Part::Query, 19), (Part::Value, 0)]);
        assert_eq!(places[27..29], [(Part::Key, 0), (Part::Key, 1)]);
        assert_eq!(places[37..38], [(Part::Query, 20)]);
        assert_eq!(per_group.describe(&sizes(), Some(GROUPED)), "(g (q + v + k))");
    }

    #[test]
    fn only_what_divides_is_a_candidate() {
        let all = candidates(&sizes());
        let mut chunks: Vec<u64> = all.iter().map(|arrangement| arrangement.chunks).collect();
        chunks.dedup();
        assert_eq!((chunks, all.len()), (vec![1, 3], 12));
        assert!(all.iter().all(|arrangement| arrangement.places(&sizes()).is_some()));
        let torn = Arrangement { chunks: 2, order: Part::FUSED.to_vec() };
        assert_eq!(torn.places(&sizes()), None);
    }

    #[test]
    fn names_are_those_of_the_notation() {
        let heads = Heads { h: 4, g: 4, d: 15, dv: 15 };
        let sizes: Sizes = Part::FUSED.into_iter().map(|part| (part, heads.rows(part))).collect();
        let named =
            |chunks| Arrangement { chunks, order: Part::FUSED.to_vec() }.describe(&sizes, Some(heads));
        assert_eq!(named(1), "(q + k + v)");
        assert_eq!(named(4), "(h (q + k + v))");
        assert_eq!(named(2), "(2 (q + k + v))");
        assert_eq!(named(60), "(h d (q + k + v))");
    }
}
