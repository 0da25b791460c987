//! `qkvconv mapping new`: a starting mapping file from the names and shapes of a checkpoint.
