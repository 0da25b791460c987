//! The outputs and inputs of a matrix, `l h d | e`.

use super::role::AxisRole;
use super::{Mapping, Param};

impl Param {
    /// Returns its axes as the file writes them, `l h d | e`.
    pub fn axes_text(&self) -> String {
        match self.inputs_from.and_then(|at| self.axes.split_at_checked(at)) {
            Some((outputs, inputs)) => format!("{} | {}", outputs.join(" "), inputs.join(" ")),
            None => self.axes.join(" "),
        }
    }
}

impl Mapping {
    /// Returns the axes of a matrix that are its outputs, and those that are its inputs; axes of layers and experts before
    /// them are a batch, and in neither. `None` where the file does not say it.
    ///
    /// ```
    /// let family = qkvconv::mapping::builtin::family("llama").expect("a built-in family");
    /// let (outputs, inputs) = family.matrix_axes("q.weight").expect("a matrix");
    /// assert_eq!((outputs.join(" "), inputs.join(" ")), ("h d".into(), "e".into()));
    /// ```
    pub fn matrix_axes(&self, param: &str) -> Option<(&[String], &[String])> {
        let param = self.params.get(param)?;
        let (outputs, inputs) = param.axes.split_at_checked(param.inputs_from?)?;
        let is_batch =
            |axis: &&String| matches!(self.roles().axis(axis), Some(AxisRole::Layers | AxisRole::Experts));
        let batch = outputs.iter().take_while(is_batch).count();
        Some((outputs.get(batch..)?, inputs))
    }
}
