"""AQGB: gradients broadcast at a ratio that follows the network, and refined while there is time. In reading
order: `codec` for the settings and a round, `payload` for what is sent, `packets` for how it is cut,
`profile` for what a rank sees, `plan` for what all ranks decide from it."""
