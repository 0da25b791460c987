#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use qkvconv::notation::{Text, parse_expr};
use qkvconv::span::{Source, Span};

// A template, a line break, an expression, a line break, a name that the template may match.
fuzz_target!(|text: &str| {
    let source = Arc::new(Source { name: "fuzz".to_owned(), text: text.to_owned() });
    let mut lines = text.splitn(3, '\n');
    let mut next = || lines.next().unwrap_or_default();
    let span = Span::new(&source, 0, text.len());
    let (template, expression, key) = (next(), next(), next());
    let _ = parse_expr(Text { text: expression, span: &span, verbatim: false });
    if let Ok(template) = qkvconv::mapping::key::Template::parse(Text { text: template, span: &span, verbatim: false }) {
        let _ = template.matches("", key);
    }
});
