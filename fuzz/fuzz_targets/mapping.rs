#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use qkvconv::span::Source;

fuzz_target!(|text: &str| {
    let source = Arc::new(Source { name: "fuzz.json".to_owned(), text: text.to_owned() });
    let _ = qkvconv::mapping::read(&source);
});
