//! A publication that an earlier run has begun and not finished.

use std::path::Path;

use super::record::{Record, lost};
use super::system::io_error;
use super::work::{Leave, Work};
use super::{PublishOptions, exchange, in_place};
use crate::diag::Errors;

/// Finishes a publication into a folder that an earlier run has begun; returns whether there was one. There is no folder
/// where the destination is none any more.
pub(super) fn finish(
    work: &mut Work,
    folder: Option<&Path>,
    options: PublishOptions,
) -> Result<bool, Errors> {
    // An error is not to cost what is still to be put in its place.
    let leave = std::mem::replace(&mut work.leave, Leave::Everything);
    let Some(record) = Record::read(work)? else {
        work.leave = leave;
        return Ok(false);
    };
    let Some(folder) = folder else { return Err(lost(work)) };
    let finished = match record.exchanged {
        Some(new) => exchange::finish(work, folder, &record, new)?,
        None => {
            in_place::forward(work, folder, &record, options.force, &mut Vec::new())?;
            true
        }
    };
    if finished {
        // Of what `--resume` had kept nothing is left: it has been published.
        work.begin_anew()?;
    } else {
        Record::remove(work).map_err(|error| io_error(&work.publication(), "remove it", &error))?;
    }
    work.leave = leave;
    Ok(finished)
}
