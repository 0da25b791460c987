#![no_main]

use libfuzzer_sys::fuzz_target;

// The first two bytes say how long the index is; what follows it is the data.
fuzz_target!(|data: &[u8]| {
    let Some((length, rest)) = data.split_first_chunk::<2>() else { return };
    let at = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (index, data) = rest.split_at(at);
    qkvconv_fuzz::with_folder(|folder| {
        let written = std::fs::write(folder.join("a.data-00000-of-00001"), data)
            .and_then(|()| std::fs::write(folder.join("a.index"), index));
        if written.is_ok() {
            qkvconv_fuzz::read_path(&folder.join("a"));
        }
    });
});
