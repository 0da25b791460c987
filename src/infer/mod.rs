//! `qkvconv mapping infer`: the rules between two checkpoints that hold the same weights, found from their contents.
