//! Names that an unknown one may be a slip for.

/// Longer names, in bytes, are not compared with others.
const LONGEST_NAME: usize = 512;

/// Returns the name of a tensor that differs from `key` in a slip of up to three characters, where there is one.
///
/// Names of tensors are long and alike; what [`nearest`] takes for near would be any other tensor of the module.
pub fn nearest_key<'a>(key: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const MOST: usize = 3;
    // The distance costs the product of the lengths, and a hostile name may be of megabytes.
    let fits = |other: &&str| other.len().abs_diff(key.len()) <= 4 * MOST && other.len() <= LONGEST_NAME;
    let near = known.into_iter().filter(fits).map(|other| (strsim::osa_distance(key, other), other));
    near.filter(|(distance, _)| *distance <= MOST)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, other)| other)
}

/// Returns the known name nearest to `name`, where one is near enough to be meant.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // The distance costs the product of the lengths, and no name of that length is a slip for another.
    if name.len() > LONGEST_NAME {
        return None;
    }
    let mut best: Option<(f64, &str)> = None;
    for candidate in known.into_iter().filter(|other| other.len() <= LONGEST_NAME) {
        // A name of which more than half is other letters is another name, whatever else it shares.
        let distance = strsim::osa_distance(name, candidate);
        if 2 * distance > name.chars().count().max(candidate.chars().count()) {
            continue;
        }
        // 0.7 is where burn-store's suggestions begin too (tracel-ai/burn, crates/burn-store/src/apply_result.rs).
        let mut score = strsim::jaro_winkler(name, candidate);
        // Of a short word (`kye` for `key`) one slip is most of it.
        if candidate.len() > 2 && distance == 1 {
            score = score.max(0.7);
        }
        if score >= 0.7 && best.is_none_or(|(other, _)| score > other) {
            best = Some((score, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_hostile_length_is_near_to_none() {
        // The distance of two such names would take hours.
        let (long, other) = ("a.".repeat(500_000), "a.".repeat(500_001));
        assert_eq!(nearest(&long, [other.as_str(), "a"]), None);
        assert_eq!(nearest("a.b", [long.as_str(), "a.c"]), Some("a.c"));
    }

    #[test]
    fn the_nearest_name_is_near() {
        assert_eq!(nearest("q.wieght", ["k.weight", "q.weight"]), Some("q.weight"));
        assert_eq!(nearest("zzz", ["k.weight", "q.weight"]), None);
        assert_eq!(nearest("kye", ["query", "key"]), Some("key"));
        assert_eq!(nearest("x", ["a", "h"]), None);
        assert_eq!(nearest("x/b", ["flux/bfl", "whisper/mlx"]), None);
        assert_eq!(
            nearest_key("l.1.k_proj.weight", ["l.1.qkv.weight", "l.1.k_prj.weight"]),
            Some("l.1.k_prj.weight")
        );
        assert_eq!(nearest_key("l.1.v_proj.weight", ["l.1.qkv.weight"]), None);
    }
}
