//! The strings of protocol 0, which stand on a line with escapes in them.

/// Returns the bytes of a quoted string with Python's escapes (CPython, `PyBytes_DecodeEscape`).
pub(super) fn unquote(line: &[u8]) -> Option<Vec<u8>> {
    let line = line.trim_ascii();
    let (first, rest) = line.split_first()?;
    let (last, inside) = rest.split_last()?;
    if first != last || !matches!(first, b'\'' | b'"') {
        return None;
    }
    let mut bytes = Vec::with_capacity(inside.len());
    let mut rest = inside.iter().copied();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next()? {
            b'x' => {
                let digits = [rest.next()?, rest.next()?];
                bytes.push(u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()?);
            }
            digit @ b'0'..=b'7' => {
                let mut code = u32::from(digit - b'0');
                for _ in 0..2 {
                    match rest.clone().next() {
                        Some(digit @ b'0'..=b'7') => code = code * 8 + u32::from(digit - b'0'),
                        _ => break,
                    }
                    rest.next();
                }
                bytes.push((code & 0xff) as u8);
            }
            b'n' => bytes.push(b'\n'),
            b'r' => bytes.push(b'\r'),
            b't' => bytes.push(b'\t'),
            b'a' => bytes.push(7),
            b'b' => bytes.push(8),
            b'f' => bytes.push(12),
            b'v' => bytes.push(11),
            b'\n' => {}
            byte @ (b'\\' | b'\'' | b'"') => bytes.push(byte),
            byte => bytes.extend([b'\\', byte]),
        }
    }
    Some(bytes)
}

/// Returns the UTF-8 of a string in Latin-1 where only `\u` and `\U` are escapes (`raw-unicode-escape`).
pub(super) fn raw_unicode(line: &[u8]) -> Option<Vec<u8>> {
    let mut text = String::with_capacity(line.len());
    let mut at = 0;
    while let Some(&byte) = line.get(at) {
        let digits = match (byte, line.get(at + 1)) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => {
                text.push(char::from(byte));
                at += 1;
                continue;
            }
        };
        let code = line.get(at + 2..at + 2 + digits).and_then(|digits| str::from_utf8(digits).ok())?;
        text.push(char::from_u32(u32::from_str_radix(code, 16).ok()?)?);
        at += 2 + digits;
    }
    Some(text.into_bytes())
}
