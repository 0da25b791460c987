#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| qkvconv_fuzz::mapping(text));
