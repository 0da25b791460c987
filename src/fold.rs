//! Lists of tensor names with their indices folded: `layers.{0..31}.q_proj.weight (32)`.

use std::collections::{BTreeSet, HashSet};

use indexmap::IndexMap;

/// Returns a name with its indices left out: names of one pattern differ in nothing else.
pub fn pattern(key: &str) -> String {
    split(key).0
}

/// Splits a name at its whole numbers: the text with a `\0` for each number, and the numbers.
pub(crate) fn split(key: &str) -> (String, Vec<&str>) {
    let mut pattern = String::with_capacity(key.len());
    let mut numbers = Vec::new();
    let mut rest = key;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let number = &rest[start..];
        let length = number.bytes().take_while(u8::is_ascii_digit).count();
        // Digits inside a word (`fc1`, `h2o`) are part of its name.
        let inside_word = pattern_ends_in_word(&rest[..start]);
        pattern.push_str(&rest[..start]);
        if inside_word {
            pattern.push_str(&number[..length]);
        } else {
            pattern.push('\0');
            numbers.push(&number[..length]);
        }
        rest = &number[length..];
    }
    pattern.push_str(rest);
    (pattern, numbers)
}

fn pattern_ends_in_word(text: &str) -> bool {
    text.chars().next_back().is_some_and(char::is_alphanumeric)
}

/// Folds names that differ only in their indices; the count stands behind a folded name.
///
/// Names keep the order of their first appearance. Indices become `{0..31}` where they are consecutive and
/// `{0,1,3}` otherwise; where index positions do not fill a rectangle, those first indices stay together that have the
/// same behind them.
pub fn fold_keys<'a>(keys: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut groups: IndexMap<(String, usize), Vec<Row<'_>>> = IndexMap::new();
    for key in keys {
        let (pattern, numbers) = split(key);
        let count = numbers.len();
        groups.entry((pattern, count)).or_default().push(numbers);
    }
    groups.iter().flat_map(|((pattern, count), rows)| fold_group(pattern, *count, rows, 0)).collect()
}

/// The indices of one name.
type Row<'a> = Vec<&'a str>;

fn fold_group(pattern: &str, positions: usize, rows: &[Row<'_>], fixed: usize) -> Vec<String> {
    let columns: Vec<BTreeSet<(usize, &str)>> = (0..positions)
        .map(|position| {
            // Few differ; the many that do not are not sorted.
            let distinct: HashSet<&str> = rows.iter().map(|row| row[position]).collect();
            distinct.into_iter().map(|index| (index.len(), index)).collect()
        })
        .collect();
    let rectangle = columns.iter().map(BTreeSet::len).product::<usize>();
    let distinct = rows.iter().collect::<HashSet<_>>().len();
    if rectangle == distinct || fixed >= positions {
        return vec![print(pattern, &columns, rows.len())];
    }
    let mut parts: IndexMap<&str, Vec<&Row<'_>>> = IndexMap::new();
    for row in rows {
        parts.entry(row[fixed]).or_default().push(row);
    }
    let mut alike: IndexMap<BTreeSet<&[&str]>, Vec<Row<'_>>> = IndexMap::new();
    for part in parts.into_values() {
        let behind = part.iter().map(|row| &row[fixed + 1..]).collect();
        alike.entry(behind).or_default().extend(part.into_iter().cloned());
    }
    alike.values().flat_map(|part| fold_group(pattern, positions, part, fixed + 1)).collect()
}

fn print(pattern: &str, columns: &[BTreeSet<(usize, &str)>], count: usize) -> String {
    let mut text = String::new();
    let mut columns = columns.iter();
    for piece in pattern.split_inclusive('\0') {
        text.push_str(piece.trim_end_matches('\0'));
        if piece.ends_with('\0')
            && let Some(column) = columns.next()
        {
            text.push_str(&print_column(column));
        }
    }
    if count > 1 {
        text.push_str(&format!(" ({count})"));
    }
    text
}

fn print_column(column: &BTreeSet<(usize, &str)>) -> String {
    let values: Vec<&str> = column.iter().map(|(_, value)| *value).collect();
    let [first, .., last] = values[..] else { return values.concat() };
    let numbers: Option<Vec<u64>> = values.iter().map(|value| value.parse().ok()).collect();
    match numbers {
        Some(numbers) if numbers.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1])) => {
            format!("{{{first}..{last}}}")
        }
        _ if values.len() <= 8 => format!("{{{}}}", values.join(",")),
        _ => format!("{{{},{},…,{last}}}", first, values[1]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold(keys: &[&str]) -> Vec<String> {
        fold_keys(keys.iter().copied())
    }

    #[test]
    fn consecutive_indices_become_a_range() {
        let keys: Vec<String> = (0..32).map(|layer| format!("layers.{layer}.attn.q_proj.weight")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        assert_eq!(fold(&keys), ["layers.{0..31}.attn.q_proj.weight (32)"]);
    }

    #[test]
    fn gaps_stay_visible() {
        assert_eq!(fold(&["l.0.w", "l.1.w", "l.3.w"]), ["l.{0,1,3}.w (3)"]);
    }

    #[test]
    fn two_indices_fold_where_they_fill_a_rectangle() {
        assert_eq!(fold(&["l.0.h.0.w", "l.0.h.1.w", "l.1.h.0.w", "l.1.h.1.w"]), ["l.{0..1}.h.{0..1}.w (4)"]);
        assert_eq!(fold(&["l.0.h.0.w", "l.0.h.1.w", "l.1.h.0.w"]), ["l.0.h.{0..1}.w (2)", "l.1.h.0.w"]);
    }

    #[test]
    fn first_indices_with_the_same_behind_them_stay_together() {
        let of = |tower: u32, blocks: u32| (0..blocks).map(move |block| format!("t.{tower}.b.{block}.w"));
        let keys: Vec<String> = (0..4).flat_map(|tower| of(tower, if tower == 2 { 2 } else { 3 })).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        assert_eq!(fold(&keys), ["t.{0,1,3}.b.{0..2}.w (9)", "t.2.b.{0..1}.w (2)"]);
    }

    #[test]
    fn digits_of_a_word_are_not_indices() {
        assert_eq!(fold(&["fc1.weight", "fc2.weight"]), ["fc1.weight", "fc2.weight"]);
    }
}
