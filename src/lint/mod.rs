//! `qkvconv mapping check`: whether a mapping file is right, without any checkpoint.
