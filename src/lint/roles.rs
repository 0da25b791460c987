//! Roles that a mapping file leaves open: which parameters are q, k, v and o, and where their heads and pairs are.

use super::is_own;
use crate::diag::{Diagnostic, LintCode};
use crate::mapping::role::AxisRole;
use crate::mapping::{Layout, Mapping};
use crate::notation::{AxisName, for_each_axis};
use crate::span::Span;

/// Asks for roles where a framework computes attention and nothing tells them.
pub(super) fn check(mapping: &Mapping, found: &mut Vec<Diagnostic>) {
    let roles = mapping.roles();
    let mut ask = |span: &Span, message: String, help: String| {
        if is_own(mapping, span) {
            found.push(Diagnostic::warning(LintCode::Role, message).rule(span).help(help));
        }
    };
    if mapping.layouts.values().all(|layout| layout.forwards.is_empty()) {
        return;
    }
    for (name, param) in &mapping.params {
        let (Some(part), Some(known)) = (roles.part(name), roles.param(name)) else { continue };
        let (role, axes) = (known.role.name(), param.axes.join(" "));
        if !known.is_told {
            ask(
                &param.span,
                format!("only the order of a fused tensor's parts tells that `{name}` is {role}"),
                format!(
                    "write {{ \"axes\": \"{axes}\", \"role\": \"{role}\" }}, so that the order can be checked"
                ),
            );
        }
        let is_named = mapping.head_axis(name).is_some() && mapping.head_size_axis(name).is_some();
        if !is_named && !part.is_bias {
            ask(
                &param.span,
                format!(
                    "`{name}` is {role} of an attention, but none of its axes is one of heads, or none a head size"
                ),
                "give its axes roles: `query heads` or `kv heads`, `head size` or `value head size`"
                    .to_owned(),
            );
        }
    }
    let turns = |layout: &Layout| layout.forwards.values().any(|forward| forward.rotary.is_some());
    let has_halves = mapping.axes.keys().any(|name| roles.axis(name) == Some(AxisRole::RotaryHalves));
    if has_halves || !mapping.layouts.values().any(turns) {
        return;
    }
    // A head size that is composed of an axis of 2 elements: those of a pair.
    let sizes = mapping.axes.iter().filter(|(name, _)| roles.axis(name) == Some(AxisRole::HeadSize));
    for term in sizes.flat_map(|(_, axis)| axis.is.iter().flatten()) {
        for_each_axis(&term.dims, &mut |inner, _| {
            let AxisName::Named(inner) = inner else { return };
            let Some(axis) = mapping.axes.get(inner).filter(|axis| axis.size == Some(2)) else { return };
            ask(
                &axis.span,
                format!("`{inner}` stands in a head that turns, and has no role"),
                "if it is the two elements of a rotary pair, give it the role `rotary halves`".to_owned(),
            );
        });
    }
}
