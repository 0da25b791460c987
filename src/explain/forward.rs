//! How a framework computes attention, in words.

use super::formula;
use crate::mapping::forward::{Apply, Cut, Forward, Norm, NormKind, Part, Product, Projection, Slot};

/// Tells how attention is computed from the stored tensors.
pub(super) fn forward(name: &str, forward: &Forward) -> Vec<String> {
    let title = if name.is_empty() { String::new() } else { format!(" ({name})") };
    let mut lines = vec![format!("how the framework computes{title}: {}", forward.citation)];
    lines.extend(forward.products.iter().map(|product| format!("  {}", product_words(product))));
    for bias in &forward.biases {
        lines.push(format!(
            "  {} added from {}{}",
            order(&bias.order),
            bias.tensor,
            cut(&bias.cut, &bias.order)
        ));
    }
    for (what, norm) in [("q", &forward.q_norm), ("k", &forward.k_norm)] {
        lines.extend(norm.iter().map(|norm| format!("  {what} is normed: {}", norm_words(norm))));
    }
    lines.push(match &forward.rotary {
        None => "  no rotation by position".to_owned(),
        Some(rotary) => format!(
            "  q and k rotate by position, {} pairs, {}",
            rotary.style.words(),
            match &rotary.dims {
                Some(dims) => format!("the first {} elements of a head", formula(dims)),
                None => "all of a head".to_owned(),
            }
        ),
    });
    let scale = forward.scale.as_ref().map_or("1/sqrt(d)", formula);
    let mut attention = format!("  scores × {scale}");
    if forward.causal {
        attention.push_str(", causal");
    }
    if forward.cross {
        attention.push_str(", k and v read another input than q");
    }
    if let Some(heads) = &forward.kv_heads {
        attention.push_str(&format!(", with {} key/value heads", formula(heads)));
    }
    lines.push(attention);
    if let Some(out) = &forward.out {
        let mean = if out.mean { ", of the mean over the heads" } else { "" };
        lines.push(format!("  output: {}{mean}", projection(out)));
    }
    for (axis, dim) in &forward.stacked {
        lines.push(format!("  one {axis} at a time, axis {dim} of each tensor"));
    }
    let renamed: Vec<String> =
        forward.axes.iter().map(|(own, family)| format!("{own} is {family}")).collect();
    if !renamed.is_empty() {
        lines.push(format!("  here {}", renamed.join(", ")));
    }
    lines
}

fn product_words(product: &Product) -> String {
    let cut = cut(&product.cut, &product.order);
    let rest = if product.projection.rest { ", with more behind" } else { "" };
    format!("{}: {}{cut}{rest}", order(&product.order), projection(&product.projection))
}

fn projection(projection: &Projection) -> String {
    let weight = &projection.weight;
    let bias = projection.bias.as_ref().map_or(String::new(), |bias| format!(" + {bias}"));
    let mut text = match &projection.apply {
        Apply::Linear => format!("x · {weight}ᵀ{bias}"),
        Apply::Dense => format!("x · {weight}{bias}"),
        Apply::Convolution => format!("a convolution of width 1 with {weight}{bias}"),
        Apply::Einsum { before, summed } => {
            let last = before + summed;
            let axes: Vec<String> = (*before..last).map(|axis| axis.to_string()).collect();
            format!("x · {weight}, summed over its axis {}{bias}", axes.join(" and "))
        }
    };
    if let Some(each) = &projection.each {
        text.push_str(&format!(", one for each {each}"));
    }
    text
}

fn order(slots: &[Slot]) -> String {
    let name = |slot: &Slot| {
        let part = match slot.part {
            Part::Q => "q",
            Part::K => "k",
            Part::V => "v",
        };
        if slot.other { format!("another attention's {part}") } else { part.to_owned() }
    };
    slots.iter().map(name).collect::<Vec<_>>().join(", ")
}

fn cut(cut: &Cut, order: &[Slot]) -> String {
    if order.len() < 2 {
        return String::new();
    }
    match cut {
        Cut::Blocks => ", one after the other".to_owned(),
        Cut::PerHead => ", of each head one after the other".to_owned(),
        Cut::PerGroup => ", of each key/value head one after the other".to_owned(),
        Cut::Per(count) => format!(", of each of {} blocks one after the other", formula(count)),
    }
}

fn norm_words(norm: &Norm) -> String {
    let kind = match norm.kind {
        NormKind::RootMeanSquare => "by the root of the mean square",
        NormKind::Layer => "by mean and standard deviation",
        NormKind::Length => "by its length",
    };
    let over = if norm.together { "all heads together" } else { "each head" };
    let weight = norm.weight.as_ref().map_or(String::new(), |weight| format!(", × {weight}"));
    let bias = norm.bias.as_ref().map_or(String::new(), |bias| format!(", + {bias}"));
    format!("{over} {kind}{weight}{bias}")
}
