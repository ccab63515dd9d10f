"""What a person with an AWS account runs beside `pulumi up`: doctor, cost, push, state, smoke and the
preview's comment. Nothing here is imported by the program; nothing here imports pulumi."""
