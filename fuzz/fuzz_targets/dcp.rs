#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: qkvconv_fuzz::let_caught_panics_pass(), |data: &[u8]| qkvconv_fuzz::dcp(data));
