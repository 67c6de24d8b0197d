// SPDX-License-Identifier: Apache-2.0
// A static program that does nothing. The start-up of an executable is compared with its cost.

int main(void)
{
    return 0;
}
