//! The fields of the access logs of Application Load Balancers.

/// The names of the fields, in their order, as AWS documents them.
pub(super) const NAMES: [&str; 30] = [
    "type",
    "time",
    "elb",
    "client",
    "target",
    "request_processing_time",
    "target_processing_time",
    "response_processing_time",
    "elb_status_code",
    "target_status_code",
    "received_bytes",
    "sent_bytes",
    "request",
    "user_agent",
    "ssl_cipher",
    "ssl_protocol",
    "target_group_arn",
    "trace_id",
    "domain_name",
    "chosen_cert_arn",
    "matched_rule_priority",
    "request_creation_time",
    "actions_executed",
    "redirect_url",
    "error_reason",
    "target_list",
    "target_status_code_list",
    "classification",
    "classification_reason",
    "conn_trace_id",
];

/// The field `name`.
pub(super) fn field<'a>(fields: &[&'a str], name: &str) -> Option<&'a str> {
    let place = NAMES.iter().position(|known| *known == name)?;
    fields.get(place).copied()
}
