//! A family in words: its axes, its parameters, its layouts.

use super::axis_line;
use crate::mapping::{Mapping, Param, Unmapped};

/// Tells of a family.
pub fn family(mapping: &Mapping) -> Vec<String> {
    let mut lines = vec![format!("{}: {}", mapping.family, mapping.about), String::new(), "axes".to_owned()];
    lines.extend(mapping.axes.iter().map(|(name, axis)| format!("  {}", axis_line(name, axis))));
    lines.extend([String::new(), "parameters, in canonical order".to_owned()]);
    lines.extend(mapping.params.iter().map(|(name, param)| format!("  {}", param_line(name, param))));
    lines.push(String::new());
    if !mapping.anchors.is_empty() {
        lines.push(format!("a module has at least one of {}", mapping.anchors.join(", ")));
    }
    lines.push(match mapping.unmapped {
        Unmapped::Keep => "tensors that no rule holds pass through, bytes and names untouched".to_owned(),
        Unmapped::Error => "a tensor that no rule holds is an error".to_owned(),
    });
    lines.extend([String::new(), "layouts".to_owned()]);
    lines.extend(mapping.layouts.values().map(|layout| format!("  {}  {}", layout.name, layout.about)));
    lines
}

/// Tells of a parameter, with what it means where it is missing.
pub(super) fn param_line(name: &str, param: &Param) -> String {
    let mut notes = Vec::new();
    match (param.optional, param.absent_zeros) {
        (true, true) => notes.push("optional; zeros fill its part of a fused tensor".to_owned()),
        (true, false) => notes.push("optional".to_owned()),
        (false, true) => notes.push("zeros where one side has none".to_owned()),
        (false, false) => {}
    }
    if let Some(tied) = &param.tied {
        notes.push(format!("{tied} where a checkpoint has none"));
    }
    if !param.sparse.is_empty() {
        notes.push(format!("some {} may lack it", param.sparse.join(", ")));
    }
    let notes = if notes.is_empty() { String::new() } else { format!("  ({})", notes.join("; ")) };
    format!("{name}: {}{notes}", param.axes_text())
}
