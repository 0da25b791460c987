//! The Python literal that is the header of an array.

/// How deeply lists and tuples may be nested.
const DEEPEST: usize = 32;

/// A Python literal, as far as headers of arrays have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Literal {
    /// A string without its quotes.
    Text(String),
    /// `True` or `False`
    Bool(bool),
    /// `None`
    Nothing,
    /// An integer that is not negative.
    Int(u64),
    /// A tuple or a list.
    Many(Vec<Literal>),
    /// A dict with strings for keys.
    Dict(Vec<(String, Literal)>),
}

impl Literal {
    /// Parses a text that is one literal, with white space around it; `None` where it is anything else.
    ///
    /// The memory is bounded by a small multiple of the text's length.
    pub(super) fn parse(text: &str) -> Option<Literal> {
        let mut parser = Parser(text);
        let literal = parser.value(0)?;
        parser.skip_space();
        parser.0.is_empty().then_some(literal)
    }
}

struct Parser<'a>(&'a str);

impl Parser<'_> {
    fn skip_space(&mut self) {
        self.0 = self.0.trim_start_matches([' ', '\t', '\r', '\n', '\u{c}']);
    }

    /// Takes a text if it stands next.
    fn take(&mut self, text: &str) -> bool {
        self.skip_space();
        let rest = self.0.strip_prefix(text);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn value(&mut self, depth: usize) -> Option<Literal> {
        self.skip_space();
        let first = self.0.chars().next()?;
        match first {
            '\'' | '"' => self.text().map(Literal::Text),
            '0'..='9' => self.int().map(Literal::Int),
            '(' => self.many('(', ')', depth),
            '[' => self.many('[', ']', depth),
            '{' => self.dict(depth),
            _ if self.take("True") => Some(Literal::Bool(true)),
            _ if self.take("False") => Some(Literal::Bool(false)),
            _ if self.take("None") => Some(Literal::Nothing),
            _ => None,
        }
    }

    fn text(&mut self) -> Option<String> {
        let mut chars = self.0.char_indices();
        let (_, quote) = chars.next()?;
        let mut text = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => text.push(chars.next()?.1),
                _ if c == quote => {
                    self.0 = self.0.get(at + quote.len_utf8()..)?;
                    return Some(text);
                }
                _ => text.push(c),
            }
        }
        None
    }

    fn int(&mut self) -> Option<u64> {
        let rest = self.0.trim_start_matches(|c: char| c.is_ascii_digit());
        let digits = self.0.get(..self.0.len() - rest.len())?;
        // Python 2 marks long integers (numpy/numpy, `numpy/lib/_format_impl.py`, `_filter_header`).
        self.0 = rest.strip_prefix('L').unwrap_or(rest);
        digits.parse().ok()
    }

    fn many(&mut self, open: char, close: char, depth: usize) -> Option<Literal> {
        let mut items = Vec::new();
        if depth >= DEEPEST || !self.take(open.encode_utf8(&mut [0; 4])) {
            return None;
        }
        let mut commas = 0;
        while !self.take(close.encode_utf8(&mut [0; 4])) {
            if items.len() > commas {
                return None;
            }
            items.push(self.value(depth + 1)?);
            commas += usize::from(self.take(","));
        }
        // One item in parentheses without a comma is that item.
        if open == '(' && items.len() == 1 && commas == 0 { items.pop() } else { Some(Literal::Many(items)) }
    }

    fn dict(&mut self, depth: usize) -> Option<Literal> {
        let mut entries = Vec::new();
        if depth >= DEEPEST || !self.take("{") {
            return None;
        }
        let mut commas = 0;
        while !self.take("}") {
            if entries.len() > commas || !self.0.starts_with(['\'', '"']) {
                return None;
            }
            let key = self.text()?;
            if !self.take(":") {
                return None;
            }
            entries.push((key, self.value(depth + 1)?));
            commas += usize::from(self.take(","));
        }
        Some(Literal::Dict(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spacing_and_quotes_do_not_matter() {
        let text = Literal::Text;
        let expected = Literal::Dict(vec![
            ("shape".into(), Literal::Many(vec![Literal::Int(2), Literal::Int(3)])),
            ("descr".into(), text("<f4".into())),
            ("fortran_order".into(), Literal::Bool(true)),
        ]);
        for header in [
            "{'shape': (2, 3), 'descr': '<f4', 'fortran_order': True, }   \n",
            " {\"shape\":(2L,3L,),\"descr\":\"<f4\",\"fortran_order\":True}",
            "{ 'shape' : ( 2 ,3 ) , 'descr' :'<f4' ,'fortran_order'\n: True}",
            "{'shape': [2, 3], 'descr': '\\<f4', 'fortran_order': True}",
        ] {
            assert_eq!(Literal::parse(header), Some(expected.clone()), "{header}");
        }
        assert_eq!(Literal::parse("()"), Some(Literal::Many(Vec::new())));
        assert_eq!(Literal::parse("(7,)"), Some(Literal::Many(vec![Literal::Int(7)])));
        assert_eq!(Literal::parse("(7)"), Some(Literal::Int(7)));
        assert_eq!(Literal::parse("[7]"), Some(Literal::Many(vec![Literal::Int(7)])));
    }

    #[test]
    fn what_is_no_literal_is_nothing() {
        for header in [
            "",
            "{",
            "{'a'",
            "{'a':",
            "{'a': 1",
            "{'a' 1}",
            "{'a': 1 'b': 2}",
            "{1: 2}",
            "(1 2)",
            "(,)",
            "{,}",
            "-1",
            "'a",
            "'a\\",
            "18446744073709551616",
            "1 2",
            "True1",
            "os.system('x')",
            "(1]",
            "1e3",
            "[1,,2]",
        ] {
            assert_eq!(Literal::parse(header), None, "{header}");
        }
        assert_eq!(Literal::parse(&"(".repeat(100_000)), None);
        let deep = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(Literal::parse(&deep(DEEPEST)).is_some() && Literal::parse(&deep(DEEPEST + 1)).is_none());
    }
}
