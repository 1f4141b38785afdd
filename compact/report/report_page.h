// SPDX-License-Identifier: Apache-2.0
// The comparison as one HTML page: a table, curves of loss and accuracy, memory bars. Everything is
// inside the file: no scripts, no fonts or images from elsewhere. Follows the reader's light or
// dark setting.
#pragma once

#include <span>
#include <string>

#include "compact/report/run_report.h"

namespace compact {

// `title`, `subtitle` and `note`, which stands under the table, are plain text. Throws InputError
// on no runs.
std::string report_page(std::span<const RunReport> runs, const std::string& title,
                        const std::string& subtitle, const std::string& note = {});

// The frame that all pages share: `body` is HTML, whose classes are those of chart.h.
std::string html_page(const std::string& title, const std::string& subtitle,
                      const std::string& body);

}  // namespace compact
